"""Paper 000, figure 2."""
