"""Paper 002, figure 3."""
