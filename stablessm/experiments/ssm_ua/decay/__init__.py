"""Convergence rates through a linear layer and through an activation."""
