"""The reference backend: plain PyTorch operations, differentiable to any order. Other backends must match it."""
