"""Exports one step of a model, or a model over whole sequences, with ``torch.export`` or as ONNX."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch.export import Dim

from stablessm import record
from stablessm._checked import Size, checked
from stablessm._errors import ArgumentError
from stablessm._optional import require
from stablessm.streaming.freeze import freeze
from stablessm.streaming.sequence_module import SequenceModule
from stablessm.streaming.step_module import FrozenModule, StepModule

Format: TypeAlias = Literal["torch", "onnx"]


@checked
def export_step(
    model: nn.Module,
    path: str | os.PathLike[str] | None = None,
    *,
    format: Format | None = None,
    batch: Size | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Any:
    """Export one step (x_t, *states) -> (y_t, *states) of a model as a ``torch.export`` or ONNX program.

    The program has constant weights and uses only real numbers. x_t is (batch, d_input), or tokens (batch,) in int64;
    y_t is (batch, d_output). There is one state per layer, in the shape of the layer's state. A complex state is a pair
    of real numbers in a last dimension of 2, as ``torch.view_as_real`` returns it (ONNX has no complex arithmetic).
    Pooling by the mean has two states: sum and count. A stream starts from states of zeros. The program uses the
    layer's own time step; a dt for each sample is not supported.

    Args:
        model: any model that :class:`Streamer` accepts. Its present weights are copied.
        path: the file to write, ``.pt2`` or ``.onnx``; None writes nothing.
        format: ``torch`` (``torch.export``) or ``onnx``, which requires ``pip install 'stablessm[export]'`` (default:
            by the suffix of ``path``, or ``torch``).
        batch: fixes the number of streams that run together (default: the exported step takes any number).
        metadata: texts to store in the file, by name: in ONNX as ``metadata_props``, otherwise as extra files
            (``torch.export.load(path, extra_files={name: ""})``).

    Returns:
        A ``torch.export.ExportedProgram`` or a ``torch.onnx.ONNXProgram``. The inputs of an ONNX program are called
        ``x``, ``state_0``, …, and its outputs ``y``, ``next_state_0``, ….

    >>> import stablessm as ssm
    >>> layer = ssm.LRU(3, 8, 2)
    >>> step = export_step(layer).module()
    >>> x_t, state = torch.randn(4, 3), layer.initial_state(4)
    >>> y_t, pairs = step(x_t, torch.view_as_real(state))
    >>> torch.allclose(y_t, layer.step(x_t, state)[0], atol=1e-6)
    True
    """
    format = _checked_format(path, format)
    module = StepModule(freeze(model)).eval()
    streams = 2 if batch is None else batch  # torch.export would fix a size of 1
    dynamic = {0: Dim("batch")} if batch is None else None
    return _exported(module, path, format, (streams,), dynamic, dynamic, metadata=metadata)


@checked
def export_sequence(
    model: nn.Module,
    path: str | os.PathLike[str] | None = None,
    *,
    format: Format | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Any:
    """Export a model over whole sequences, (x, *states) -> (y, *states), for any batch size and length.

    States, weights and return value are the same as for :func:`export_step`. x is (batch, time, d_input), or tokens
    (batch, time); y is (batch, time, d_output). A long sequence can be run in chunks: the states that one call returns
    are the states of the next call. For a model with one output per sequence, y[:, t] is the output for the sequence up
    to step t, as ``model.sequence`` returns it; ``y[:, -1]`` is ``model(x)``.

    With ``torch``, linear recurrences are written in standard operations that compute all steps together. With
    ``onnx``, linear recurrences are ``Scan`` operators, which onnxruntime computes one step after the other. Nonlinear
    recurrences (:class:`ContinuousRNN`) run step by step in both formats.

    Args:
        model: any model that :func:`export_step` accepts, or :class:`Bidirectional`. The second state of a
            ``Bidirectional`` comes from the steps after the sequence, so an exported ``Bidirectional`` cannot run in
            chunks.
        path: the file to write, ``.pt2`` or ``.onnx``; None writes nothing.
        format: ``torch`` or ``onnx``, as in :func:`export_step`.
        metadata: texts to store in the file, as in :func:`export_step`.

    >>> import stablessm as ssm
    >>> layer = ssm.RealSSM(3, 8, 2)
    >>> run = export_sequence(layer).module()
    >>> x = torch.randn(4, 100, 3)
    >>> y, state = run(x, layer.initial_state(4))
    >>> torch.allclose(y, layer(x)[0], atol=1e-5)
    True
    """
    format = _checked_format(path, format)
    module = SequenceModule(freeze(model, whole=True), loops=format == "onnx").eval()
    batch, time = Dim("batch"), Dim("time")
    return _exported(module, path, format, (2, 5), {0: batch, 1: time}, {0: batch}, metadata=metadata)


def _checked_format(path: str | os.PathLike[str] | None, format: Format | None) -> Format:
    if path is not None and Path(path).is_dir():
        raise ArgumentError("path", "a file", f"{path}, a folder")
    if path is not None and not Path(path).parent.is_dir():
        raise ArgumentError("path", "a file in an existing folder", f"{path} (there is no {Path(path).parent})")
    if format is None:
        if path is not None and Path(path).suffix.lower() not in (".onnx", ".pt2"):
            raise ArgumentError("path", "a file that ends in .onnx or .pt2, or a format", path)
        format = "onnx" if path is not None and Path(path).suffix.lower() == ".onnx" else "torch"
    if format == "onnx":
        for package in ("onnx", "onnxscript"):
            require(package, "format='onnx'")
    return format


def _exported(
    module: FrozenModule,
    path: str | os.PathLike[str] | None,
    format: Format,
    shape: tuple[int, ...],
    *dynamic: Any,
    metadata: Mapping[str, str] | None,
) -> Any:
    """Export a module to the given format, and write it to ``path`` unless this is None; return the exported program.

    ``shape`` is the shape of an example input x without its last dimension. ``dynamic`` states the dynamic dimensions
    of x and of the states.
    """
    program, (of_input, of_state), texts = module.program, dynamic, dict(metadata or {})
    x = torch.zeros(*shape, program.sizes[0], dtype=program.torch_dtype)
    if program.table is not None:
        x = torch.zeros(shape, dtype=torch.int64)
    states = module.initial_state(shape[0])
    shapes = None if of_input is None else (of_input, (of_state,) * len(states))
    if format == "onnx":
        exported = _onnx(module, (x, *states), shapes)
        exported.model.metadata_props.update(texts)
    else:
        exported = torch.export.export(module, (x, *states), dynamic_shapes=shapes)
    if path is not None:
        with record.atomic(path) as temporary:
            if format == "onnx":
                exported.save(temporary)
            else:  # PyTorch's writer of files ends the process if the disk is full
                content = io.BytesIO()
                torch.export.save(exported, content, extra_files=texts)
                temporary.write_bytes(content.getbuffer())
    return exported


def _onnx(module: FrozenModule, example: tuple[Any, ...], shapes: Any) -> Any:
    states = [f"state_{k}" for k in range(len(example) - 1)]
    names: dict[str, Any] = {"input_names": ["x", *states], "output_names": ["y", *(f"next_{name}" for name in states)]}
    with _quiet():
        return torch.onnx.export(module, example, dynamic_shapes=shapes, verbose=False, **names)


@contextmanager
def _quiet() -> Iterator[None]:
    """Return a context that hides warnings of PyTorch's exporter: about missing packages, and about deprecated
    functions that the exporter itself calls.
    """
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.filterwarnings("ignore", ".*axis name", UserWarning)  # two inputs share the dimension "batch"
            yield
    finally:
        logger.setLevel(before)
