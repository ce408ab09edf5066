"""Kernels for other machines: compiled, not run. And the choice of the processor, run."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from pathlib import Path

import fresh_process
import pytest
import torch

import stablessm as ssm

llvm = pytest.importorskip("llvmlite.binding")

from stablessm.llvm import compiler  # noqa: E402
from stablessm.llvm.compiler import optimized  # noqa: E402
from stablessm.llvm.target import initialize  # noqa: E402
from stablessm.scan.cpu import chunk_emitter, linear_kernels, ssm_kernels, ssm_tables  # noqa: E402
from stablessm.streaming.freeze import freeze  # noqa: E402
from stablessm.streaming.memory import Memory  # noqa: E402
from stablessm.streaming.step_code import build  # noqa: E402

TARGETS = [
    ("x86_64-unknown-linux-gnu", "x86-64"),
    ("x86_64-unknown-linux-gnu", "x86-64-v3"),
    ("aarch64-unknown-linux-gnu", "generic"),
    ("arm64-apple-macosx", "apple-m1"),
    ("x86_64-pc-windows-msvc", "x86-64"),
]
C_LIBRARY = {"memset", "memcpy", "memmove", "bzero"}


def modules(triple: str, *, every: bool):
    """Kernels of the scan and of the fused layer, and the steps of a model with activations."""
    for backward, double, complex_ in itertools.product((False, True), repeat=3) if every else [(False, False, True)]:
        for per_step in (False, True) if every else (False,):
            spec = linear_kernels.Spec(backward, double, complex_, per_step, reset=True, stream=True, prefetch=True)
            yield linear_kernels.build(spec).module
        for kernels in (ssm_kernels, ssm_tables) if every else (ssm_kernels,):
            yield kernels.build(chunk_emitter.Spec(backward, double, complex_, 16)).module
    for dtype in (torch.float32, torch.float64) if every else (torch.float32,):
        for layer in (ssm.S4D(20, 4), ssm.ContinuousRNN(3, 8, 2, activation="tanh")):
            program = freeze(layer.to(dtype))
            memory = Memory(program, 2)
            x, y = memory.values[0][:, : program.sizes[0]], memory.values[program.output][:, : layer.d_output]
            yield build(program, memory, x, y, triple)


def unresolved(machine: llvm.TargetMachine, module: llvm.ModuleRef) -> set[str]:
    """Names that the assembly calls, or takes the address of, and does not define."""
    text = machine.emit_assembly(module)
    used = re.findall(
        r"(?:^\s+(?:callq?|jmp|bl?)\s+|\$|:abs_g\d(?:_nc)?:)\"?([A-Za-z_][\w$@]*)|([A-Za-z_]\w*)@(?:GOT)?PAGE",
        text,
        re.M,
    )
    defined = set(re.findall(r"^\"?([\w.$@]+)\"?:", text, re.M))
    names = {name for pair in used for name in pair if name} - defined
    return {name.removeprefix("_") if "apple" in machine.triple else name for name in names}


def machine_for(triple: str, cpu: str) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    initialize()  # the parser of the stack probe's assembly
    return llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features="", opt=3)


def check(triple: str, cpu: str, *, every: bool) -> None:
    for module in modules(triple, every=every):
        machine = machine_for(triple, cpu)
        code = optimized(module, machine)
        assert unresolved(machine, code) <= C_LIBRARY
        text = machine.emit_assembly(code)
        if cpu == "x86-64":
            assert not re.search(r"%[yz]mm\d|\sv[a-z]+[ps][sd]\s", text), "AVX"
        if '@"step"' in str(module):
            assert re.search("ldmxcsr|fpcr", text, re.I), "denormals count as zero in a step"
        assert machine.emit_object(code)


@pytest.mark.parametrize(("triple", "cpu"), TARGETS[1:2] + TARGETS[3:])  # the others compile the same way
def test_kernels_compile(triple: str, cpu: str) -> None:
    check(triple, cpu, every=False)


def test_a_missing_stack_probe_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_STACK_PROBE", "")
    machine = machine_for("x86_64-pc-windows-msvc", "x86-64")
    module = ssm_kernels.build(chunk_emitter.Spec(False, False, True, 16)).module
    assert unresolved(machine, optimized(module, machine)) - C_LIBRARY == {"__chkstk"}


@pytest.mark.slow
@pytest.mark.parametrize(("triple", "cpu"), TARGETS)
def test_every_kernel_compiles(triple: str, cpu: str) -> None:
    check(triple, cpu, every=True)


PROGRAM = """
import torch, stablessm as ssm
from stablessm.llvm.target import cpu_name
torch.manual_seed(0)
decay, x = torch.rand(70).requires_grad_(), torch.randn(3, 200, 70, requires_grad=True)
B = torch.randn(70, 4, requires_grad=True)
def results(backend):
    h = ssm.linear_scan(decay, x, backend=backend)
    y, _ = ssm.ssm_scan(x, decay[:, None].expand(70, 4) * 0.9, B, B, backend=backend)
    return [h, y, *torch.autograd.grad(h.square().mean() + y.square().mean(), (decay, x, B))]
for ours, truth in zip(results("cpu"), results("reference"), strict=True):
    torch.testing.assert_close(ours, truth, rtol=1e-4, atol=1e-5)
layer = ssm.S4D(20, 4)
signal = torch.randn(1, 50, 20)
torch.testing.assert_close(ssm.Streamer(layer, backend="compiled").run(signal), layer(signal)[0], rtol=1e-4, atol=1e-5)
print(cpu_name())
"""


def run_with(cpu: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"STABLESSM_CPU": cpu, "PYTHONPATH": str(Path(ssm.__file__).parents[1])}
    return fresh_process.run(PROGRAM, environment)


def runs_here(cpu: str) -> bool:
    return llvm.get_process_triple().startswith("x86_64") and (
        cpu == "x86-64" or bool(llvm.get_host_cpu_features().get("avx2"))
    )


@pytest.mark.parametrize("cpu", ["x86-64", pytest.param("x86-64-v3", marks=pytest.mark.slow)])
def test_a_chosen_processor_matches_the_reference(cpu: str) -> None:
    if not runs_here(cpu):
        pytest.skip(f"this machine cannot run code for {cpu}")
    result = run_with(cpu)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [cpu]


def test_an_unknown_processor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from stablessm.llvm.target import cpu_name

    monkeypatch.setenv("STABLESSM_CPU", "pentium")
    with pytest.raises(ssm.ArgumentError, match=r"STABLESSM_CPU: expected one of 'host', .* got 'pentium'"):
        cpu_name()


def test_a_processor_that_cannot_run_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from stablessm.llvm.target import cpu_name

    if not runs_here("x86-64"):
        pytest.skip("names of x86-64 processors")
    monkeypatch.setenv("STABLESSM_CPU", "x86-64-v3")
    monkeypatch.setattr(llvm, "get_host_cpu_features", dict)
    with pytest.raises(ssm.ArgumentError, match="which requires"):
        cpu_name()


@pytest.mark.parametrize("chosen", [None, "host", "x86-64"])
def test_code_is_for_all_instructions_of_this_processor_unless_another_is_named(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    from stablessm.llvm import target

    if chosen == "x86-64" and not runs_here("x86-64"):
        pytest.skip("names of x86-64 processors")
    monkeypatch.delenv("STABLESSM_CPU", raising=False)
    if chosen is not None:
        monkeypatch.setenv("STABLESSM_CPU", chosen)
    asked: list[dict[str, object]] = []

    class Target:
        def create_target_machine(self, **options: object) -> None:
            asked.append(options)

    monkeypatch.setattr(llvm.Target, "from_default_triple", Target)
    target.target_machine()
    host = {"cpu": llvm.get_host_cpu_name(), "features": llvm.get_host_cpu_features().flatten(), "opt": 3}
    assert asked == [{"cpu": "x86-64", "features": "", "opt": 3} if chosen == "x86-64" else host]


def test_the_team_of_pytorch_is_joined_where_there_is_one() -> None:
    from stablessm import _fork
    from stablessm.llvm import threads

    assert (threads.team() is None) == (_fork.openmp() is None)


@pytest.mark.parametrize(("units", "workers"), [(0, 1), (1, 1), (7, 3), (2, 2), (9, 4)])
def test_ranges_cover_all_units_once(units: int, workers: int) -> None:
    from stablessm.llvm import threads

    seen: list[int] = []
    threads.in_ranges(lambda first, last: seen.extend(range(first, last)), units, workers)
    assert sorted(seen) == list(range(units))
