"""Paper 002, figure 6."""
