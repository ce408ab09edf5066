"""Paper 000, figure 3."""
