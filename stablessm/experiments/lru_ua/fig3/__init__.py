"""LRU-UA, figure 3."""
