"""LRU-UA, figure 9."""
