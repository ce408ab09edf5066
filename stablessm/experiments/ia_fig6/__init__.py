"""Paper 000, figure 6."""
