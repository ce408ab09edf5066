"""Appends one step of this library's models (blocks, norms, gates, pooling) to a program."""

from __future__ import annotations

from functools import singledispatch
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from stablessm._errors import ArgumentError
from stablessm.models.block import Block
from stablessm.models.hyena import Hyena
from stablessm.models.norms import BatchNorm, LayerNorm, NoNorm
from stablessm.models.pooling import Mean
from stablessm.models.sequence_model import SequenceModel
from stablessm.streaming.program import Program, Taps

KNOWN = (
    "RealSSM, LRU, S4D, ContinuousRNN, gated layers, models and constructions of them, or nn.Sequential of them and of "
)
POINTWISE: dict[type[nn.Module], str] = {
    nn.Identity: "linear", nn.Dropout: "linear", nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid",
    nn.SiLU: "silu",
}  # fmt: skip


def unknown(module: nn.Module) -> ArgumentError:
    """Return the error about a module that has no rule."""
    pointwise = ", ".join(kind.__name__ for kind in (nn.Linear, nn.GELU, nn.Hardtanh, *POINTWISE))
    return ArgumentError("model", KNOWN + pointwise, type(module).__name__)


@singledispatch
def add(module: nn.Module, program: Program, x: int) -> int:
    """Append the step of a module to a program, given the index x of its input; return the index of its output."""
    for kind, function in POINTWISE.items():
        if type(module) is kind:
            return program.pointwise(x, function)
    raise unknown(module)


@add.register
def _(model: SequenceModel, program: Program, x: int) -> int:
    """Append one step of a model to a program, given the index x of its input; return the index of its output.

    For a model with pooling, this is the output for the sequence so far. For a model whose inputs are tokens, value 0
    is the embedding of the token.
    """
    outer, program.structure = program.structure, []
    if model.config.vocab_size is None:
        x = add(model.body.encoder, program, x)
    elif x:
        raise ArgumentError("model", "a model of tokens as the first module", "a model of tokens after another module")
    else:
        program.table = program.array(model.body.encoder.weight)
    for block in model.body.blocks:
        x = add(block, program, x)
    x = add(model.body.norm, program, x)
    blocks, program.structure = tuple(program.structure), []
    if isinstance(model._pooling, Mean):
        x = _mean(program, x)
    program.structure = [*outer, (blocks, tuple(program.structure))]
    return program.affine((x, model._table), bias=None if model.readout is None else model.readout.bias)


def _mean(program: Program, x: int) -> int:
    """Append the running mean of the value x over all steps to a program; return the index of the mean.

    The program stores two states: the sum of the values, and the number of steps.
    """
    size = program.sizes[x]
    (total,), (count,) = program.state((size,)), program.state((1,))
    program.scale(total, torch.ones(1), x, out=total)
    program.scale(count, torch.ones(1), torch.ones(1), out=count)
    return program.product(total, _everywhere(program, program.pointwise(count, "reciprocal"), size))


@add.register
def _(block: Block, program: Program, x: int) -> int:
    def before(norm: nn.Module, value: int) -> int:
        return add(norm, program, value) if block.prenorm else value

    def joined(norm: nn.Module, value: int, onto: int) -> int:
        total = program.scale(onto, torch.ones(1), value)
        return total if block.prenorm else add(norm, program, total)

    y = add(block.mixer, program, before(block.norm, x))
    y = program.pointwise(y, "linear" if block.activation == "none" else block.activation)
    if block.gate is not None:
        (V, W), (b, c) = block.gate.weight.chunk(2), block.gate.bias.chunk(2)
        y = program.product(
            program.affine((y, V), bias=b), program.pointwise(program.affine((y, W), bias=c), "sigmoid")
        )
    x = joined(block.norm, y, onto=x)
    if block.mlp_norm is None or block.wide is None or block.narrow is None:
        return x
    y = program.pointwise(add(block.wide, program, before(block.mlp_norm, x)), "gelu")
    return joined(block.mlp_norm, add(block.narrow, program, y), onto=x)


@add.register
def _(module: Hyena, program: Program, x: int) -> int:
    """Append one step of a Hyena operator to a program, given the index x of its input; return the index of its output.

    The filter of the operator has three taps; the state of the filter consists of the last two inputs.
    """
    outer, program.structure = program.structure, []
    z, width = add(module.projection, program, x), 3 * module.d_model
    (past,) = program.state((2, width))
    out, oldest = program.value(width), program.value(width)
    program.operations.append(Taps(out, oldest, z, past, program.array(module.filter[:2].mT), np.arange(width)))
    q, k, v = program.split(program.scale(oldest, module.filter[2], out), *(module.d_model,) * 3)
    y = add(module.inner, program, program.product(k, v))
    program.structure = [*outer, tuple(program.structure)]
    return add(module.output, program, program.product(q, y))


@add.register
def _(norm: LayerNorm, program: Program, x: int) -> int:
    """Append the layer normalization (x - mean) / √(variance + ε) ⊙ weight + bias of the value x to a program; return
    the index of the result.
    """
    size = program.sizes[x]
    average = torch.full((1, size), 1 / size, dtype=torch.float64)
    centered = program.scale(x, torch.ones(1), _everywhere(program, program.affine((x, -average)), size))
    variance = program.affine((program.product(centered, centered), average), bias=average.new_tensor([norm.eps]))
    normal = program.product(centered, _everywhere(program, program.pointwise(variance, "rsqrt"), size))
    return program.scale(normal, norm.weight, norm.bias)


@add.register
def _(norm: BatchNorm, program: Program, x: int) -> int:
    """Append a batch normalization of the value x, with the running statistics from training; return the index of the
    result.
    """
    mean, variance = (cast(Tensor, part).double() for part in (norm.running_mean, norm.running_var))
    factor = norm.weight / (variance + norm.eps).sqrt()
    return program.scale(x, factor, norm.bias - mean * factor)


@add.register
def _(norm: NoNorm, program: Program, x: int) -> int:
    return x


def _everywhere(program: Program, number: int, size: int) -> int:
    """Append an operation that repeats a single number ``size`` times; return the index of the resulting vector.

    ``number`` is the index of the value that contains the number.
    """
    return program.affine((number, torch.ones(size, 1)))
