"""Paper 000, figure 4."""
