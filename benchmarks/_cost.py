"""What a training step of the language model costs on many GPUs: compute, memory, communication, on paper.

Counts follow from the shapes; times are counts over rates, without overlap of computing and sending, so that they are
upper bounds for good hardware and good programs. ``docs/scaling.md`` has the tables, ``benchmarks/scaling.py`` compares
them with measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from stablessm._errors import ArgumentError
from stablessm.models.hyena_filter import TAPS

_OPTIMIZER = 16
"""Bytes a parameter: a number, its gradient and two moments of AdamW, in float32."""
_WIDE = 4
"""Bytes of a number where precision matters: states, carries, gradients, logits."""


@final
@dataclass(frozen=True, kw_only=True)
class Network:
    """The language model: blocks of Hyena around a real recurrence and an MLP, tied embeddings.

    Args:
        d_model, n_layers, d_state, mlp, vocab_size: as in :class:`~stablessm.models.LanguageConfig`.
        number: bytes of an activation, 2 for bfloat16.
        recompute: whether blocks keep their inputs only and compute the rest again in the backward pass.

    >>> f"{Network().parameters:,}"
    '126,098,688'
    """

    d_model: int = 768
    n_layers: int = 12
    d_state: int = 128
    mlp: int = 4
    vocab_size: int = 50257
    number: int = 2
    recompute: bool = False

    @property
    def parameters(self) -> int:
        """All that is trained."""
        d, n = self.d_model, self.d_state
        norms, hyena = 4 * d, 4 * d * d + 4 * d + 3 * TAPS * d
        recurrence, mlp = 2 * d * n + 2 * n, 2 * self.mlp * d * d + (self.mlp + 1) * d
        return self.n_layers * (norms + hyena + recurrence + mlp) + 2 * d + self.vocab_size * d

    def operations(self, *, split: bool) -> int:
        """Floating-point operations a token: forward, and twice that backward; ``split``: with the pass for carries."""
        d, n = self.d_model, self.d_state
        block = (4 + 2 * self.mlp) * d * d + 2 * d * n * (2 if split else 1)
        return 2 * ((4 if self.recompute else 3) * self.n_layers * block + 3 * self.vocab_size * d)

    def kept(self, *, tensor: int = 1, split: bool = False) -> float:
        """Bytes a token that are kept for the backward pass: what goes into each product, norm and activation."""
        blocks = self.n_layers * (self.d_model * self.number if self.recompute else self._block(tensor, split))
        return blocks + 2 * self.d_model * self.number + self.vocab_size * _WIDE / tensor

    def peak(self, *, tensor: int = 1, split: bool = False) -> float:
        """Bytes a token at the fullest moment: with the gradients of the logits, or of the last block's MLP."""
        logits = 2 * self.vocab_size * _WIDE / tensor
        block = (2 * self.mlp / tensor + 2) * self.d_model * self.number
        if self.recompute:
            block += self._block(tensor, split)
        return self.kept(tensor=tensor, split=split) + max(logits, block)

    def _block(self, tensor: int, split: bool) -> float:
        """Bytes a token that a block keeps."""
        d = self.d_model
        whole, shared = 4 * d, (9 + 2 * self.mlp) * d  # the sum and its norms; what lies between products of matrices
        return (whole + shared / tensor) * self.number + (4 if split else 2) * self.d_state * _WIDE

    def carry(self) -> int:
        """Bytes that a rank sends for one sequence in one round of one layer: a state's map, and a short filter's."""
        taps = TAPS - 1
        return _WIDE * (2 * self.d_state + taps * (taps + 3 * self.d_model))


@final
@dataclass(frozen=True, kw_only=True)
class Machine:
    """Rates of a cluster: GPUs in nodes, links within and between them.

    Args:
        operations: a second, of products of matrices as training reaches them.
        bandwidth: bytes a second to and from a GPU's memory.
        memory: bytes of a GPU.
        node: GPUs in a node.
        links: bytes a second that a GPU sends, within its node and beyond.
        latencies: seconds of an empty message, within a node and beyond.

    The numbers given are the data sheet of an H200 (989 teraflops of bfloat16, taken at 40 %, 4.8 TB/s, 141 GB,
    NVLink 450 GB/s each way) with 400 Gb/s of network a GPU; the latencies are guesses. Yours will differ: put them in.
    """

    operations: float = 0.4 * 989e12
    bandwidth: float = 4.8e12
    memory: float = 141e9
    node: int = 8
    links: tuple[float, float] = (450e9, 50e9)
    latencies: tuple[float, float] = (4e-6, 12e-6)

    def message(self, size: float, span: int) -> float:
        """Seconds of a message between GPUs ``span`` apart at most."""
        far = int(span > self.node)
        return self.latencies[far] + size / self.links[far]

    def all_reduce(self, size: float, ranks: int, span: int) -> float:
        """Seconds to add ``size`` bytes up over ranks: each sends them twice; latencies as in a tree."""
        if ranks == 1:
            return 0.0
        far = int(span > self.node)
        rounds = 2 * math.ceil(math.log2(ranks))
        return rounds * self.latencies[far] + 2 * (ranks - 1) / ranks * size / self.links[far]


@final
@dataclass(frozen=True)
class Plan:
    """How many ranks share the batch, each sequence, and each product of matrices.

    Ranks of one product are neighbors, then those of one sequence, then the batch.

    >>> Plan(data=8, sequence=4).ranks
    32
    """

    data: int = 1
    sequence: int = 1
    tensor: int = 1

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.data * self.sequence * self.tensor

    def __str__(self) -> str:
        names = {"D": self.data, "S": self.sequence, "T": self.tensor}
        return " ".join(f"{name}{count}" for name, count in names.items() if count > 1) or "1"


@final
@dataclass(frozen=True)
class Cost:
    """Of one step, on the busiest rank."""

    compute: float
    """Seconds of arithmetic and of moving activations through memory."""
    gradients: float
    """Seconds of adding gradients up over all ranks that have the same parameters."""
    carries: float
    """Seconds of waiting for states from other ranks, there and back."""
    products: float
    """Seconds of adding up parts of products of matrices."""
    memory: float
    """Bytes, with one sequence at a time."""
    sent: float
    """Bytes of carries that a rank sends for one sequence at most, there and back."""

    @property
    def communication(self) -> float:
        """Seconds of it."""
        return self.gradients + self.carries + self.products

    @property
    def seconds(self) -> float:
        """Of the step: nothing overlaps."""
        return self.compute + self.communication


def step_cost(network: Network, machine: Machine, plan: Plan, *, steps: int, batch: int) -> Cost:
    """A step of ``batch`` sequences of ``steps`` tokens. Each rank takes its sequences one after the other.

    Args:
        network, machine, plan: what runs where.
        steps, batch: tokens of a sequence, sequences of a step. A plan cannot share fewer sequences than it has
            ``data``, nor fewer steps than it has ``sequence``.

    >>> cost = step_cost(Network(), Machine(), Plan(sequence=8), steps=2**20, batch=1)
    >>> cost.seconds < step_cost(Network(), Machine(), Plan(tensor=8), steps=2**20, batch=1).seconds
    True
    """
    for name, count, least in (("plan.data", plan.data, batch), ("plan.sequence", plan.sequence, steps)):
        if not 1 <= count <= least:
            raise ArgumentError(name, f"from 1 to {least}", count)
    sequences, own = math.ceil(batch / plan.data), math.ceil(steps / plan.sequence)
    tokens, split = sequences * own, plan.sequence > 1
    kept = network.kept(tensor=plan.tensor, split=split)
    arithmetic = network.operations(split=split) * tokens / plan.tensor / machine.operations
    moving = 3 * kept * tokens / machine.bandwidth  # written, read again, and a gradient of that size
    alike = plan.data * plan.sequence
    gradients = machine.all_reduce(_WIDE * network.parameters / plan.tensor, alike, plan.ranks)
    rounds = math.ceil(math.log2(plan.sequence))
    message = machine.message(network.carry() / 2 / plan.tensor, plan.tensor * plan.sequence)
    exchanges = 2 * network.n_layers * rounds  # of the short filter and of the recurrence
    staggered = min(plan.sequence - 1, exchanges)  # ranks that wait stay behind, and need not wait again
    waits = staggered + 2 * exchanges if network.recompute else 2 * staggered
    carries = waits * sequences * message
    product = tokens * network.number
    reductions = (
        2
        * network.n_layers
        * (
            2 * machine.all_reduce(product * network.d_model, plan.tensor, plan.tensor)
            + machine.all_reduce(product * network.d_state, plan.tensor, plan.tensor)
        )
    )
    peak = network.peak(tensor=plan.tensor, split=split)
    memory = _OPTIMIZER * network.parameters / plan.tensor + peak * own
    sent = network.n_layers * _messages(plan.sequence, network.recompute) * network.carry() / plan.tensor
    return Cost(arithmetic + moving, gradients, carries, reductions, memory, sent)


def plans(ranks: int, *, steps: int, batch: int, widest: int = 8) -> list[Plan]:
    """All that use so many ranks, in powers of two; products of matrices over ``widest`` at most.

    >>> [str(plan) for plan in plans(4, steps=100, batch=1, widest=2)]
    ['S2 T2', 'S4']
    """
    found = []
    for tensor in _powers(min(widest, ranks)):
        for sequence in _powers(min(ranks // tensor, steps)):
            data = ranks // tensor // sequence
            if data * sequence * tensor == ranks and data <= batch:
                found.append(Plan(data, sequence, tensor))
    return sorted(found, key=lambda plan: (-plan.tensor, plan.sequence))


def fastest(network: Network, machine: Machine, ranks: int, *, steps: int, batch: int) -> tuple[Plan, Cost] | None:
    """The quickest plan that fits into memory, and its cost; None if none fits."""
    candidates = plans(ranks, steps=steps, batch=batch, widest=machine.node)
    costs = [(plan, step_cost(network, machine, plan, steps=steps, batch=batch)) for plan in candidates]
    fitting = [(plan, cost) for plan, cost in costs if cost.memory <= machine.memory]
    return min(fitting, key=lambda pair: pair[1].seconds) if fitting else None


def crossing(
    network: Network, machine: Machine, one: Plan, other: Plan, *, batch: int = 1, longest: int = 2**24
) -> int | None:
    """The least number of tokens a sequence from which ``one`` is as quick as ``other``; None if it never is.

    Looked for by halving, so it should be slower before and quicker after.

    >>> crossing(Network(), Machine(), Plan(sequence=8), Plan(tensor=8)) < 2**14
    True
    """

    def quicker(steps: int) -> bool:
        cost, others = (step_cost(network, machine, plan, steps=steps, batch=batch) for plan in (one, other))
        return cost.seconds <= others.seconds

    low, high = max(one.sequence, other.sequence), longest
    if not quicker(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if quicker(middle) else (middle + 1, high)
    return low


def longest_context(network: Network, machine: Machine, ranks: int) -> int:
    """Tokens of one sequence that fit, split over so many ranks."""
    free = machine.memory - _OPTIMIZER * network.parameters
    return max(0, int(free / network.peak(split=ranks > 1))) * ranks


def _messages(ranks: int, again: bool) -> int:
    """How many the rank sends that sends most: ahead 1, 2, 4, … ranks, there, perhaps once more, and back."""
    jumps = _powers(ranks - 1)
    ahead = [sum(rank + jump < ranks for jump in jumps) for rank in range(ranks)]
    return max((2 if again else 1) * there + back for there, back in zip(ahead, reversed(ahead), strict=True))


def _powers(most: int) -> list[int]:
    return [2**k for k in range(most.bit_length())]
