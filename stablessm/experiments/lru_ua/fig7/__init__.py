"""LRU-UA, figure 7."""
