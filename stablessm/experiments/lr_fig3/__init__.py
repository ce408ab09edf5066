"""Paper 003, figure 3."""
