"""Tensor shapes, as comments the type checker accepts.

Legend of letters, the same in every docstring:

========  ==========================================================
``B``     batch
``T``     time, in steps
``C``     channels of a scan
``D``     features of an input (``d_input``) or output (``d_output``)
``N``     states (``d_state``)
``H``     independent channels of an S4D layer
========  ==========================================================
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import Tensor

Time: TypeAlias = Literal["continuous", "discrete"]
"""Which kind of eigenvalue: continuous is stable for Re λ < 0, discrete for |λ| < 1."""

Sequence: TypeAlias = Tensor
"""(B, T, D)"""

State: TypeAlias = Tensor
"""(B, N), or (B, H, N) for S4D; complex where the recurrence is."""

Lengths: TypeAlias = Tensor | None
"""(B,) whole numbers: how many steps of each right-padded sequence are real; all by default."""

Reset: TypeAlias = Tensor | None
"""(T,) or (B, T) bool: True at the first step of a new episode; none by default."""

Dt: TypeAlias = float | Tensor | None
"""The time since the previous sample: a number, (T,) or (B, T); the layer's own step by default."""
