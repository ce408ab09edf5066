"""Paper 002, figure 4."""
