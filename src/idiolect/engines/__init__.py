"""Where methods run: one client at a time, or all clients at once."""
