"""Paper 003, figure 6."""
