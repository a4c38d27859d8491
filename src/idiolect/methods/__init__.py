"""The methods, one file or folder each."""
