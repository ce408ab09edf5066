"""LRU-UA, figure 4."""
