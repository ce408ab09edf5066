"""The check that the outputs of a model do not depend on how its state is carried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stablessm._checked import Positive, Seed, Size, checked
from stablessm._errors import ArgumentError, unknown_name
from stablessm._progress import working
from stablessm.instruments._state_cases import CASES, run_case
from stablessm.instruments._state_check import Check
from stablessm.instruments._state_plans import Shape
from stablessm.instruments.adapters import Stateful, as_stateful, name_of
from stablessm.instruments.adapters.facts import evaluating
from stablessm.instruments.state_report import StateReport


@torch.no_grad()
@checked
def check_state(
    model: Any,
    *,
    d_input: Size | None = None,
    cases: Sequence[str] | None = None,
    length: Size = 24,
    batch: Size = 3,
    seed: Seed = 0,
    tol: Positive | None = None,
    progress: bool = True,
) -> StateReport:
    """Test whether a model with a state gives the same outputs in every way of carrying its state; return a report.

    The model runs on random sequences in one pass. Then it runs on the same sequences in other ways: step by step, in
    chunks, with padding, each sequence alone, several sequences packed into a row, from copied, saved and moved states,
    and so on. Each way is a case, in which the model must return the outputs of the one pass. For each case,
    ``StateReport.cases`` states whether the outputs agree and, if they do not, how large the error is, at which step it
    starts and which layer differs first.

    The model is a layer or model of this library, ``nn.RNN``, ``nn.GRU``, ``nn.LSTM`` or one of their cells, a causal
    Hugging Face model, a reservoirpy node, or a :class:`stablessm.instruments.Stateful` of your own. It may also be a
    function ``(x, state) -> (y, state)`` of tensors or NumPy arrays, with x (B, T, d_input) and None as the initial
    state. Modules run in evaluation mode. A model in half precision, and a Hugging Face model in float64, runs as a
    copy in float32.

    Args:
        model: The model.
        d_input: Number of input channels (default: from the model).
        cases: Names of the cases to run (default: all).
        length, batch: Length and number of the sequences, at least 12 and 2.
        seed: Seed of the inputs.
        tol: Largest error relative to the largest output, and for each channel relative to the largest output of that
            channel. The default is 1e-9 in float64 and 2e-5 in float32 or, if larger, 20 times the change of the
            outputs when the weights change by rounding errors.
        progress: Whether to show a progress bar.

    Raises:
        ArgumentError: The model has no state, draws random numbers, or returns numbers that are not finite.

    >>> import stablessm as ssm
    >>> check_state(ssm.LRU(3, 8, 2)).passed, check_state(torch.nn.GRU(3, 8)).passed
    (True, True)
    """
    if length < 12 or batch < 2:
        raise ArgumentError("length, batch", "at least 12 steps and 2 sequences", (length, batch))
    if cases is not None and (isinstance(cases, str) or not cases):
        raise ArgumentError("cases", f"a list with some of {', '.join(CASES)}", cases)
    unknown = [name for name in cases or () if name not in CASES]
    if unknown:
        raise unknown_name("cases", CASES, unknown[0])
    with evaluating(model.model if isinstance(model, Stateful) else model), working("check_state", progress) as tell:
        adapter = as_stateful(model, d_input=d_input)
        if adapter.dtype not in (torch.float32, adapter.most_exact):
            adapter = adapter.cast(torch.float32)
        check = Check(adapter, Shape(batch, length), seed, tol)
        found = []
        for name in cases or CASES:
            found.append(run_case(check, name))
            tell()
    return StateReport(name_of(adapter.model), tuple(found))
