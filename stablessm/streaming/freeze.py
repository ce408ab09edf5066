"""Converts a model to a program: a list of operations, for which everything that depends only on weights is
precomputed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stablessm._errors import ArgumentError, quoted
from stablessm.constructions.filters.layer import ChannelGroup, RecurrentConvolution
from stablessm.constructions.pointwise._stack import LayerStack
from stablessm.constructions.series.model import VolterraSSM
from stablessm.layers import HGRN, LRU, RGLRU, S4D, Bidirectional, ContinuousRNN, MinGRU, MinLSTM, RealSSM, SelectiveSSM
from stablessm.layers.gated import GatedLayer
from stablessm.layers.rg_lru import SHARPNESS
from stablessm.models.linear_rnn_mlp import LinearRNNMLP, PointwiseMLP, Units, Whitening
from stablessm.streaming.network_steps import add, unknown
from stablessm.streaming.program import Channels, Program, Rotate, Taps


@torch.no_grad()
def freeze(model: nn.Module, *, whole: bool = False) -> Program:
    """Convert a model to a program for one step or, with ``whole``, for a whole sequence.

    Dropout modules are left out, as in a model in evaluation mode.

    >>> program = freeze(LRU(3, 8, 2))
    >>> [type(operation).__name__ for operation in program.operations]
    ['Affine', 'Affine', 'Rotate', 'Affine']
    """
    dtypes = {parameter.dtype for parameter in model.parameters()} if isinstance(model, nn.Module) else set()
    if not dtypes:
        raise ArgumentError("model", "a module with parameters", type(model).__name__)
    if len(dtypes) > 1:
        raise ArgumentError("model", "parameters of one dtype", ", ".join(sorted(map(str, dtypes))))
    program = Program(_d_input(model), dtypes.pop(), whole=whole)
    program.output = add(model, program, 0)
    if not program.slots:
        raise ArgumentError("model", "at least one layer with a state", type(model).__name__)
    several = isinstance(model, nn.Sequential | LayerStack)
    program.structure = tuple(program.structure) if several else program.structure[0]
    return program


def _d_input(model: nn.Module) -> int:
    for module in model.modules():
        for name in ("d_input", "in_features"):
            if isinstance(size := getattr(module, name, None), int):
                return size
    raise unknown(model)


@add.register
def _(layer: RealSSM, program: Program, x: int) -> int:
    decay, gain = layer._discretize(None)
    bias = None if layer.bias is None else gain.double() * layer.bias
    drive = program.affine((x, gain.double()[:, None] * layer.B), bias=bias)
    (h,) = program.state(layer.state_shape)
    program.scale(h, decay, drive, out=h)
    terms = [(program.pointwise(h, layer.activation), layer.C)]
    return program.affine(*terms, *([] if layer.D is None else [(x, layer.D)]))


@add.register
def _(layer: LRU, program: Program, x: int) -> int:
    return _lru(layer, program, x, clock=False)


def _lru(layer: LRU, program: Program, x: int, *, clock: bool) -> int:
    """Append the step of an LRU to a program, given the index x of its input; return the index of its output.

    With ``clock``, the first input of the LRU is a constant 1, which is not an element of the value x.
    """
    decay, gain = layer._discretize(None)
    B = gain.double()[:, None, None] * layer.B
    drive = [program.affine((x, B[:, k, clock:]), bias=B[:, k, 0] if clock else None) for k in (0, 1)]
    real, imag = program.state(layer.state_shape, complex=True)
    program.operations.append(Rotate(real, imag, program.array(decay), *drive))
    terms = [(real, layer.C[..., 0]), (imag, -layer.C[..., 1])]  # Re(C h)
    return program.affine(*terms, *([] if layer.D is None else [(x, layer.D)]))


@add.register
def _(layer: S4D, program: Program, x: int) -> int:
    decay, gain = layer._discretize(None)
    weights = 2 * torch.view_as_complex(layer.C.to(gain.real.dtype))
    if program.sizes[x] != layer.d_input:
        raise ArgumentError("model", f"a module with {program.sizes[x]} inputs", layer.d_input)
    real, imag = program.state(layer.state_shape, complex=True)
    out = program.value(layer.d_output)
    constants = (program.array(numbers) for numbers in (decay, gain.to(decay.dtype), weights, layer.D))
    program.operations.append(Channels(out, x, real, imag, *constants))
    return out


@add.register
def _(layer: ContinuousRNN, program: Program, x: int) -> int:
    diagonal, linear = layer.recurrence == "diagonal", layer.activation == "linear"
    if layer.solver == "exponential" and not (diagonal or linear):
        expected = "solver='euler', a linear activation or recurrence='diagonal'"
        raise ArgumentError("model", expected, "a ContinuousRNN that needs a matrix exponential at every step")
    W = layer.recurrent_matrix()
    (h,) = program.state(layer.state_shape)
    if diagonal:
        z = program.scale(h, W, program.affine((x, layer.U), bias=layer.bias))
    else:
        z = program.affine((h, W), (x, layer.U), bias=layer.bias)
    slope = program.pointwise(z, layer.activation)
    step, one = W.new_tensor(layer.dt), W.new_ones(1)
    same = layer._linear_step(W, None)
    if same is not None:  # all steps have the same matrix dt φ(dt W)
        change = program.scale(slope, same) if diagonal else program.affine((slope, same))
    else:
        change = program.scale(slope, step)
        if layer.solver == "exponential":
            steepness = program.pointwise(z, f"{layer.activation}_slope")
            change = program.product(change, program.pointwise(program.scale(steepness, W * step), "phi"))
    program.scale(h, one, change, out=h)
    return program.affine((h, layer.C))


@add.register
def _(layer: MinGRU, program: Program, x: int) -> int:
    return _minimal(layer, program, x, program.affine((x, layer.gate), bias=layer.gate_bias))


@add.register
def _(layer: MinLSTM, program: Program, x: int) -> int:
    (forget, enter), biases = layer.gate.chunk(2), layer.gate_bias.chunk(2)
    log_f, log_i = (
        program.pointwise(program.affine((x, -weight), bias=-bias), "softplus")
        for weight, bias in zip((forget, enter), biases, strict=True)
    )
    return _minimal(layer, program, x, program.scale(log_i, -torch.ones(1), log_f))


def _minimal(layer: MinGRU | MinLSTM, program: Program, x: int, z: int) -> int:
    exponent = program.scale(program.pointwise(z, "softplus"), 2 * layer._rates())
    change = program.pointwise(exponent, "expm1")
    h = _gated(layer, program, change, program.affine((x, -layer.B), bias=-layer.bias))
    return h if layer.C is None else program.affine((h, layer.C))


@add.register
def _(layer: HGRN, program: Program, x: int) -> int:
    closed = program.pointwise(program.affine((x, -layer.gate), bias=-layer.gate_bias), "sigmoid")
    change = program.scale(closed, torch.expm1(layer._rates()))
    candidate = program.pointwise(program.affine((x, layer.B), bias=layer.bias), "silu")
    h = _gated(layer, program, change, program.scale(candidate, -torch.ones(1)))
    gate = program.pointwise(program.affine((x, layer.out_gate)), "silu")
    return program.affine((program.product(h, gate), layer.C))


@add.register
def _(layer: RGLRU, program: Program, x: int) -> int:
    gates = ((layer.gate, layer.gate_bias), (layer.in_gate, layer.in_gate_bias))
    open_, enter = (
        program.pointwise(program.affine((x, torch.block_diag(*weight)), bias=bias), "sigmoid")
        for weight, bias in gates
    )
    exponent = SHARPNESS * layer._rates()
    change = program.pointwise(program.scale(open_, exponent), "expm1")
    lost = program.pointwise(program.scale(open_, 2 * exponent), "expm1")
    gain = program.pointwise(program.scale(lost, -torch.ones(1)), "sqrt")
    return _gated(layer, program, change, x=program.product(program.product(gain, enter), x), unit=True)


@add.register
def _(layer: SelectiveSSM, program: Program, x: int) -> int:
    channels, states = layer.state_shape
    low, B, C = program.split(program.affine((x, layer.projection)), layer.dt_rank, states, states)
    delta = program.pointwise(program.affine((low, layer.gate), bias=layer.gate_bias), "softplus")
    exponent = program.scale(program.spread(delta, each=states), layer._rates().flatten())
    drive = program.spread(program.product(delta, x), each=states)
    (h,) = program.state(layer.state_shape)
    change = program.pointwise(exponent, "expm1")
    change = program.pointwise(change, "negative") if layer.map.is_stable else change
    decay = program.scale(change, torch.ones(1), torch.ones(1))
    program.gate(h, decay, program.product(drive, program.spread(B, whole=channels)))
    y = program.fold(program.product(h, program.spread(C, whole=channels)), states)
    return program.scale(x, layer.D, y)


def _gated(layer: GatedLayer, program: Program, change: int, x: int, *, unit: bool = False) -> int:
    """Append the gated recurrence h = (1 + change) h + u to a program; return the index of h.

    ``change`` and ``x`` are indices of values. The drive u is x if ``unit`` is True, otherwise change ⊙ x.
    """
    (h,) = program.state(layer.state_shape)
    change = program.pointwise(change, "negative") if layer.map.is_stable else change
    program.gate(h, program.scale(change, torch.ones(1), torch.ones(1)), x if unit else program.product(change, x))
    return h


@add.register
def _(layer: Bidirectional, program: Program, x: int) -> int:
    outer, program.structure = program.structure, []
    y, z = add(layer.ahead, program, x), add(layer.back, program, program.reverse(x))
    z = program.reverse(z)
    program.structure = [*outer, tuple(program.structure)]
    if layer.merge == "sum":
        return program.scale(y, torch.ones(1), z)
    ahead, back = torch.eye(layer.d_output).split([layer.ahead.d_output, layer.back.d_output], 1)
    return program.affine((y, ahead), (z, back))


@add.register
def _(module: nn.Linear, program: Program, x: int) -> int:
    return program.affine((x, module.weight), bias=module.bias)


@add.register
def _(module: nn.GELU, program: Program, x: int) -> int:
    if module.approximate != "none":
        raise ArgumentError("model", "GELU without approximation", quoted(module.approximate))
    return program.pointwise(x, "gelu")


@add.register
def _(module: nn.Hardtanh, program: Program, x: int) -> int:
    if (module.min_val, module.max_val) != (-1.0, 1.0):
        raise ArgumentError("model", "Hardtanh from -1 to 1", f"{module.min_val} to {module.max_val}")
    return program.pointwise(x, "hardtanh")


@add.register(nn.Sequential)
@add.register(LayerStack)
def _(model: nn.Sequential | LayerStack, program: Program, x: int) -> int:
    for module in model:
        x = add(module, program, x)
    return x


@add.register
def _(model: LinearRNNMLP, program: Program, x: int) -> int:
    return add(model.mlp, program, _lru(model.recurrence, program, x, clock=model.clock))


@add.register
def _(module: PointwiseMLP, program: Program, x: int) -> int:
    x = add(module.inputs, program, x)
    for layer in module.layers:
        x = program.pointwise(add(layer, program, x), "gelu")
    return add(module.outputs, program, add(module.readout, program, x))


@add.register
def _(module: Whitening, program: Program, x: int) -> int:
    centered = program.scale(x, torch.ones(1), -module.shift)  # first, because a large mean would cancel later
    return program.affine((centered, (module.W.double() / module.scale[:, None]).mT))


@add.register
def _(module: Units, program: Program, x: int) -> int:
    return program.scale(x, module.scale, module.shift)


@add.register
def _(model: VolterraSSM, program: Program, x: int) -> int:
    channels = add(model.layer, program, x)
    terms, power = [], channels
    for order in range(1, model.order + 1):
        power = power if order == 1 else program.product(power, channels)
        terms.append((power, (model.readout * (model.orders == order))[None]))
    return program.affine(*terms, bias=model.constant[None])


@add.register
def _(model: RecurrentConvolution, program: Program, x: int) -> int:
    terms: list[tuple[int, Tensor]] = []
    states: list[tuple[int | None, ...]] = []
    outer, program.structure = program.structure, []
    for group in model.groups:
        assert isinstance(group, ChannelGroup)
        outputs = group.filters // (len(model.fits) // model.d_output)  # filters of the same output are adjacent
        terms += [(value, _rows(outputs, model.d_output)) for value in _group(group, program, x)]
        states.append((*program.structure, None)[:2])  # states of the taps and of the modes, if there are any
        program.structure = []
    program.structure = [*outer, tuple(states)]
    return program.affine(*terms)


def _group(group: ChannelGroup, program: Program, x: int) -> list[int]:
    """Append the filters of a group, which are computed together, to a program; return the indices of one or two
    values.

    The sum of these values is the output of the filters. One value is the output of the first taps, and the other is
    the output of the recurrence (the modes) that computes the later taps.
    """
    sources = group.inputs[group.source]
    spread = program.affine((x, _rows(sources, program.sizes[x]).mT))
    (past,) = program.state((group.taps.shape[1], len(group.inputs)))
    if group.modes is not None and not group.taps.shape[1]:
        return [add(group.modes, program, spread)]
    out, oldest = program.value(len(sources)), program.value(len(sources))
    program.operations.append(Taps(out, oldest, spread, past, program.array(group.taps), group.source.cpu().numpy()))
    return [out] if group.modes is None else [out, add(group.modes, program, oldest)]


def _rows(places: Tensor, rows: int) -> Tensor:
    """Return a matrix (rows, len(places)) that is one at row ``places[k]`` of each column k, and zero elsewhere."""
    return nn.functional.one_hot(places, rows).mT.double()
