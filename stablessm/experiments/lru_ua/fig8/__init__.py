"""LRU-UA, figure 8."""
