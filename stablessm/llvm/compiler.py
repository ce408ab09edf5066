"""Compiles LLVM instructions to machine code in memory, with llvmlite."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping
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
"""Assembly of a function that LLVM calls on Windows, where a stack grows page by page, if a function needs more than
one page (rax: number of bytes). Code in memory may not find the C library's version, so every module has its own."""


@final
class MachineCode:
    """A compiled LLVM module in memory, ready to be called; its code is freed with this object.

    Args:
        module: The instructions.
        exports: Names of the functions whose addresses are needed.
        imports: Addresses of functions outside the module, by the names under which the module declares these
            functions.
    """

    def __init__(self, module: ir.Module, exports: Iterable[str], imports: Mapping[str, int] | None = None) -> None:
        with _fork.compiling:
            machine = target_machine()
            library = llvm.JITLibraryBuilder().add_object_img(machine.emit_object(optimized(module, machine)))
            library.add_current_process()  # the C library, which contains memset
            for name, address in (imports or {}).items():
                library.import_symbol(name, address)
            for name in exports:
                library.export_symbol(name)
            self._library = library.link(_linker(), f"stablessm_{next(_numbers)}")

    def address(self, name: str) -> int:
        """Return the memory address of an exported function of the module."""
        return self._library[name]


_numbers = itertools.count()


@functools.cache
def _linker() -> llvm.orcjit.LLJIT:
    return llvm.create_lljit_compiler(target_machine())


def optimized(module: ir.Module, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """Verify an LLVM module and optimize it for a target machine; return the optimized module."""
    text = str(module)
    if "windows" in machine.triple and machine.triple.startswith("x86_64"):
        text += "".join(f'\nmodule asm "{line}"' for line in _STACK_PROBE.strip().splitlines())
    parsed = llvm.parse_assembly(text)
    parsed.triple, parsed.data_layout = machine.triple, str(machine.target_data)
    parsed.verify()
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(parsed, passes)
    return parsed
