"""The step of a model as a file that runs elsewhere: ``torch.export`` or ONNX."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import nn

from stablessm import record
from stablessm._arguments import one_of, whole_number
from stablessm._checked import Size, checked
from stablessm._errors import ArgumentError
from stablessm._optional import require
from stablessm.streaming.freeze import freeze
from stablessm.streaming.step_module import StepModule

Format: TypeAlias = Literal["torch", "onnx"]


@checked
def export_step(
    model: nn.Module, path: str | os.PathLike[str] | None = None, *, format: Format | None = None, batch: Size = 1
) -> Any:
    """The step (x_t, *states) -> (y_t, *states) with frozen weights and real numbers only.

    x_t is (batch, d_input), or tokens (batch,) in int64; y_t is (batch, d_output). There is one state for each layer,
    in the shape the layer gives it; a complex one is a pair of real numbers in a last dimension of 2, as
    ``torch.view_as_real`` makes it (ONNX has no complex arithmetic). Pooling by the mean has two: sum and count. A
    stream starts from zeros. The time step is the layer's own; a dt for each sample is not exported.

    Args:
        model: as for :class:`Streamer`; its weights are copied as they are now.
        path: where to write it, ``.pt2`` or ``.onnx``; None writes nothing.
        format: ``torch`` (``torch.export``) or ``onnx``, which needs ``pip install 'stablessm[export]'``; by default
            ``onnx`` for a path that ends in ``.onnx``.
        batch: how many streams run in step.

    Returns:
        A ``torch.export.ExportedProgram`` or a ``torch.onnx.ONNXProgram``. Inputs of the latter are called ``x``,
        ``state_0``, …, its outputs ``y``, ``next_state_0``, ….

    >>> import stablessm as ssm
    >>> layer = ssm.LRU(3, 8, 2)
    >>> step = export_step(layer).module()
    >>> x_t, state = torch.randn(1, 3), layer.initial_state(1)
    >>> y_t, pairs = step(x_t, torch.view_as_real(state))
    >>> torch.allclose(y_t, layer.step(x_t, state)[0], atol=1e-6)
    True
    """
    if path is not None and Path(path).is_dir():
        raise ArgumentError("path", "a file", f"{path}, a folder")
    if format is None:
        format = "onnx" if path is not None and Path(path).suffix.lower() == ".onnx" else "torch"
    one_of("format", format, get_args(Format))
    batch = whole_number("batch", batch)
    if format == "onnx":
        for package in ("onnx", "onnxscript"):
            require(package, "format='onnx'")
    program = freeze(model)
    step = StepModule(program).eval()
    x_t = torch.zeros(batch, program.sizes[0], dtype=program.torch_dtype)
    if program.table is not None:
        x_t = torch.zeros(batch, dtype=torch.int64)
    example = (x_t, *step.initial_state(batch))
    exported: Any = torch.export.export(step, example) if format == "torch" else _onnx(step, example)
    if path is not None:
        with record.atomic(path) as temporary:
            torch.export.save(exported, temporary) if format == "torch" else exported.save(temporary)
    return exported


def _onnx(step: StepModule, example: tuple[Any, ...]) -> Any:
    states = [f"state_{k}" for k in range(len(example) - 1)]
    outputs = ["y", *(f"next_{name}" for name in states)]
    with _quiet():
        return torch.onnx.export(step, example, input_names=["x", *states], output_names=outputs, verbose=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's words on packages that it does not find and on its own deprecated calls."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logger.setLevel(before)
