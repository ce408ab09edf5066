"""Paper 004, table 2."""
