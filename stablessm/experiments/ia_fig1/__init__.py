"""Paper 000, figure 1."""
