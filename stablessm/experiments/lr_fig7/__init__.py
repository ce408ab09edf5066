"""Paper 003, figure 7."""
