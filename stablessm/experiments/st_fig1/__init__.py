"""Paper 004, figure 1."""
