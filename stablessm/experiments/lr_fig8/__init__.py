"""Paper 003, figure 8."""
