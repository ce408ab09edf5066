"""LRU-UA, figure 2."""
