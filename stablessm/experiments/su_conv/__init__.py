"""Paper 002, proposition 3.2."""
