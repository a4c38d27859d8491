"""Where client states, checkpoints and run logs live."""
