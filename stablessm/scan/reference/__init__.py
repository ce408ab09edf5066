"""The truth: plain PyTorch operations, differentiable to any order. Every other backend must match it."""
