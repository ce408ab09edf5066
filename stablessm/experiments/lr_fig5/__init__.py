"""Paper 003, figure 5."""
