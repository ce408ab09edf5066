"""Paper 004, table 1."""
