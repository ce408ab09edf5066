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
