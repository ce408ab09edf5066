"""Paper 002, figure 2."""
