"""A PyTorch module without complex numbers that runs a program over whole sequences, for export."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from stablessm.scan.dispatch import loop
from stablessm.scan.portable import Parts, scan_parts
from stablessm.streaming import program as ops
from stablessm.streaming.interpret import Values
from stablessm.streaming.step_module import FrozenModule


@final
class SequenceModule(FrozenModule):
    """A module that runs a program over all steps of a sequence of any length.

    x is (B, T, d_input), or tokens (B, T), and y is (B, T, d_output).

    Operations without a state run on all steps at once. Linear recurrences run as
    :func:`stablessm.scan.portable.scan_parts`, or, with ``loops``, step by step, which is faster in onnxruntime.
    Nonlinear recurrences always run step by step.

    >>> import stablessm as ssm
    >>> from stablessm.streaming.freeze import freeze
    >>> layer = ssm.LRU(3, 8, 2)
    >>> sequence = SequenceModule(freeze(layer))
    >>> x = torch.randn(4, 50, 3)
    >>> y, pairs = sequence(x, *sequence.initial_state(4))
    >>> torch.allclose(y, layer(x)[0], atol=1e-5)
    True
    """

    def __init__(self, program: ops.Program, *, loops: bool = False) -> None:
        super().__init__(program)
        self._loops, self._pieces = loops, _pieces(program)

    def _run(self, values: Values) -> None:
        for piece in self._pieces:
            number = piece[0]
            match self.program.operations[number]:
                case ops.Taps() as taps:
                    self._filter(taps, number, values)
                case ops.Scale(out, source, _, _) as scale if out == source and len(piece) == 1 and not self._loops:
                    self._real(scale, number, values)
                case ops.Gate(state, decay, drive) if not self._loops:
                    values[state] = scan_parts((values[decay],), (values[drive],), (values[state],))[0]
                case ops.Rotate() | ops.Channels() as recurrence if not self._loops:
                    self._complex(recurrence, number, values)
                case _ if self._states(piece):
                    self._step_by_step(piece, values)
                case _:
                    out, function = self._call(number)
                    values[out] = function(values)

    def _final(self, value: Tensor) -> Tensor:
        return value[:, -1] if value.dim() == 3 else value

    def _real(self, scale: ops.Scale, number: int, values: Values) -> None:
        constants = self._numbers(number)
        if isinstance(scale.plus, int):
            drive = values[scale.plus]
        else:
            drive = constants["plus"].expand(*values[0].shape[:2], -1)
        values[scale.out] = _scanned((constants["factor"],), (drive,), (values[scale.out],))[0]

    def _complex(self, recurrence: ops.Rotate | ops.Channels, number: int, values: Values) -> None:
        constants = self._numbers(number)
        decay = (constants["decay_real"], constants["decay_imag"])
        before = (values[recurrence.real], values[recurrence.imag])
        if isinstance(recurrence, ops.Rotate):
            drive = (values[recurrence.drive_real], values[recurrence.drive_imag])
            values[recurrence.real], values[recurrence.imag] = _scanned(decay, drive, before)
            return
        x, gain = values[recurrence.source], (constants["gain_real"], constants["gain_imag"])
        states = _scanned(decay, tuple((x[..., None] * part).flatten(2) for part in gain), before)
        values[recurrence.real], values[recurrence.imag] = states
        real, imag = (part.unflatten(2, recurrence.decay.shape) for part in states)
        y = (constants["weights_real"] * real - constants["weights_imag"] * imag).sum(-1)
        values[recurrence.out] = y + constants["skip"] * x

    def _filter(self, filters: ops.Taps, number: int, values: Values) -> None:
        constants, source = self._numbers(number), values[filters.source]
        taps, steps = constants["taps"], source.shape[1]
        line = values[filters.past].unflatten(1, (len(taps), -1)).index_select(2, constants["inputs"])
        seen = torch.cat([line, source], 1)
        values[filters.oldest] = seen[:, :steps]
        values[filters.out] = sum(seen[:, k + 1 : k + 1 + steps] * row for k, row in enumerate(taps))
        values[filters.past] = seen[:, steps:].index_select(2, constants["first"]).flatten(1)

    def _step_by_step(self, piece: range, values: Values) -> None:
        """Run the operations in a range (a piece) step by step, in a loop over time."""
        written = {value for number in piece for value in _written(self.program.operations[number])}
        read = [value for number in piece for value in _read(self.program.operations[number])]
        states = self._states(piece)
        inputs = sorted(set(read) - written) or [0]  # a piece without inputs still needs the number of steps
        wanted = sorted(written & self._read_after(piece))
        calls = [self._call(number) for number in piece]

        def step(state: tuple[Tensor, ...], now: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            at: Values = dict(zip(states, state, strict=True)) | dict(zip(inputs, now, strict=True))
            for out, function in calls:
                at[out] = function(at)
            return tuple(at[value] for value in states), tuple(at[value] for value in wanted)

        final, outputs = loop(step, tuple(values[v] for v in states), tuple(values[v] for v in inputs))
        values |= dict(zip(states, final, strict=True)) | dict(zip(wanted, outputs, strict=True))

    def _states(self, piece: range) -> list[int]:
        """Return the indices of the states that the operations in a range (a piece) replace."""
        states = {value for slot in self.program.slots for value in slot.values}
        return sorted(states & {value for number in piece for value in _written(self.program.operations[number])})

    def _read_after(self, piece: range) -> set[int]:
        later = self.program.operations[piece.stop :]
        return {self.program.output, *(value for operation in later for value in _read(operation))}


def _scanned(decay: Parts, drive: Parts, before: Parts) -> Parts:
    return scan_parts(tuple(part.flatten()[None, None] for part in decay), drive, before)


def _pieces(program: ops.Program) -> list[range]:
    """Divide the operations of a program into ranges: single operations, and operations that must run in one loop over
    time.

    A range for a loop begins with the first operation that reads a state, and ends with the operation that replaces
    this state.
    """
    last: dict[int, int] = {}
    for slot in program.slots:
        readers = [i for i, operation in enumerate(program.operations) if set(slot.values) & set(_read(operation))]
        writers = [i for i, operation in enumerate(program.operations) if set(slot.values) & set(_written(operation))]
        if writers:  # a filter without taps has an empty state, which nothing replaces
            last[min(readers)] = writers[-1]
    pieces, start = [], 0
    while start < len(program.operations):
        pieces.append(range(start, last.get(start, start) + 1))
        start = pieces[-1].stop
    return pieces


def _written(operation: ops.Operation) -> tuple[int, ...]:
    match operation:
        case ops.Rotate(real, imag):
            return real, imag
        case ops.Channels(out, _, real, imag):
            return out, real, imag
        case ops.Taps(out, oldest, _, past):
            return out, oldest, past
    return (operation[0],)


def _read(operation: ops.Operation) -> tuple[int, ...]:
    match operation:
        case ops.Affine(_, sources):
            return sources
        case ops.Scale(_, source, _, plus):
            return (source, plus) if isinstance(plus, int) else (source,)
        case ops.Gate():
            return operation
        case ops.Rotate(real, imag, _, drive_real, drive_imag):
            return real, imag, drive_real, drive_imag
        case ops.Channels(_, source, real, imag):
            return source, real, imag
        case ops.Taps(_, _, source, past):
            return source, past
        case ops.Product(_, left, right):
            return left, right
        case ops.Slice() | ops.Spread() | ops.Fold() | ops.Pointwise() | ops.Reverse():
            return (operation.source,)
