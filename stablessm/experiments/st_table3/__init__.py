"""Paper 004, table 3."""
