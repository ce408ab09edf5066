"""Paper 003, figure 2."""
