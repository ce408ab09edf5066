"""Experiments of LRU-UA: On the Universality of Linear Recurrences Followed by Nonlinear Projections."""
