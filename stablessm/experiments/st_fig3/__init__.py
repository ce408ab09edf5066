"""Paper 004, figure 3."""
