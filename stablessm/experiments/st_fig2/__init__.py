"""Paper 004, figure 2."""
