"""Paper 002, figure 5."""
