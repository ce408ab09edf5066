"""Kernels in machine code for the processor at hand, compiled by llvmlite (:mod:`stablessm.llvm`)."""
