"""What a user adds to Idiolect: one of each kind, in a package of its own."""
