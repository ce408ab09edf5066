"""Paper 000, figure 5."""
