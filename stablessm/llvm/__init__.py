"""Machine code for CPUs: instructions, targets, the compiler, and kernels on threads. Shared by scan and streaming."""
