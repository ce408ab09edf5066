"""LRU-UA, figure 5."""
