"""Scan kernels for NVIDIA GPUs, written in Triton."""
