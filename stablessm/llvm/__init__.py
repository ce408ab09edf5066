"""Machine code for CPUs, which the scan and streaming use: instructions, targets, the compiler, and threads."""
