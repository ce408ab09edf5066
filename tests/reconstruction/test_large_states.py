"""Sixteen thousand steps and four thousand states, in less than 4 GiB."""

from __future__ import annotations

import subprocess
import sys

import pytest

_DECODE = """
lam = reconstruction.optimized(4096, 16384) if {best} else reconstruction.uniform_ring(4096, 0.999)
u = torch.randn(1, 16384, dtype=torch.float64)
E = equations(lam, 16384, real=False)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    back = reconstruction.decode(E.apply(u) * E.log_norm.exp(), lam, 16384)
wanted = E.apply(u)
assert (E.apply(back) - wanted).norm() < 1e-6 * wanted.norm()  # an input with the same state
found = caught[0].message.diagnosis
assert 8000 < found.rank <= 8192, found
assert "use at least 8192 states" in str(found)
"""
_CONDITION = """
assert 1 < reconstruction.condition_number(reconstruction.uniform_ring(4096, 0.999, 1.0002), 16384)
"""
_BEST = """
assert abs(reconstruction.condition_number(reconstruction.optimized(4096, 16384), 16384) - 1) < 1e-9
"""
_AROUND = """
import resource, warnings
import torch
from stablessm import reconstruction
from stablessm.reconstruction._equations import equations
{body}
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 * 2**20  # KiB
"""


@pytest.mark.slow
@pytest.mark.parametrize("body", [_DECODE.format(best=False), _DECODE.format(best=True), _CONDITION, _BEST])
def test_in_less_than_four_gibibytes(body: str) -> None:
    subprocess.run([sys.executable, "-c", _AROUND.format(body=body)], check=True)
