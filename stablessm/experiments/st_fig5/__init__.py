"""Paper 004, figure 5."""
