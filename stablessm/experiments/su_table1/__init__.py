"""Paper 002, table 1."""
