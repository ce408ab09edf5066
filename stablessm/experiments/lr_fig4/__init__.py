"""Paper 003, figure 4."""
