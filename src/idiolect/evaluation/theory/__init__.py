"""What the papers prove, as numbers: constants, bounds and diagnostics."""
