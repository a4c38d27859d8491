"""Known data sets: bundled, read from a data directory, or downloaded by address and checksum."""
