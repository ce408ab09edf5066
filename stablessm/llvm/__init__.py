"""Machine code for CPUs, used by the scan and by streaming: instructions, compiler, target processor and threads."""
