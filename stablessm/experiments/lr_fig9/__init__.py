"""Paper 003, figure 9."""
