"""From LLVM instructions to machine code in memory, by llvmlite."""

from __future__ import annotations

from typing import final

from llvmlite import binding as llvm
from llvmlite import ir

from stablessm import _fork
from stablessm.llvm.target import target_machine

_STACK_PROBE = """
__chkstk:
    push %rcx
    push %rax
    cmp $0x1000, %rax
    lea 24(%rsp), %rcx
    jb 2f
1:
    sub $0x1000, %rcx
    test %rcx, (%rcx)
    sub $0x1000, %rax
    cmp $0x1000, %rax
    ja 1b
2:
    sub %rax, %rcx
    test %rcx, (%rcx)
    pop %rax
    pop %rcx
    ret
"""
"""Windows grows a stack page by page, so LLVM calls this where a function needs more than a page (rax: bytes). A
compiler in memory may not find the C library's, so every module has its own."""


@final
class MachineCode:
    """A module, compiled for the processor at hand. The code is freed together with this object."""

    def __init__(self, module: ir.Module) -> None:
        with _fork.compiling:
            machine = target_machine()
            self._engine = llvm.create_mcjit_compiler(optimized(module, machine), machine)
            self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Return the address of a function."""
        return self._engine.get_function_address(name)


def optimized(module: ir.Module, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """Return the module, checked and optimized for a target."""
    text = str(module)
    if "windows" in machine.triple and machine.triple.startswith("x86_64"):
        text += "".join(f'\nmodule asm "{line}"' for line in _STACK_PROBE.strip().splitlines())
    parsed = llvm.parse_assembly(text)
    parsed.triple, parsed.data_layout = machine.triple, str(machine.target_data)
    parsed.verify()
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(parsed, passes)
    return parsed
