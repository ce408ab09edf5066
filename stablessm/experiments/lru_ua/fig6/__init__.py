"""LRU-UA, figure 6."""
