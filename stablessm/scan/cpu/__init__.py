"""CPU kernels of the scans, which llvmlite compiles to machine code for this processor (:mod:`stablessm.llvm`)."""
