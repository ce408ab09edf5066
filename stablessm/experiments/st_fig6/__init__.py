"""Paper 004, figure 6."""
