"""Machine code for CPUs, for scan and streaming: instructions, targets, the compiler, and kernels on threads."""
