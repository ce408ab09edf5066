"""Paper 004, figure 4."""
