"""Results of constructions and reconstructions print as a few lines, never as whole arrays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from stablessm.constructions import (
    LongFilter,
    convert,
    elementwise,
    exponential_sum,
    from_convolution,
    kolmogorov_arnold,
)
from stablessm.reconstruction import Decoder, SparseDecoder, dct


def results() -> Iterator[object]:
    t = np.arange(300.0)
    noise = 0.01 * np.random.default_rng(0).standard_normal(300)
    ring = torch.polar(torch.ones(40), torch.arange(40.0) / 7)
    yield exponential_sum("exp(-sqrt(t))", 300, order=12)
    yield exponential_sum(np.exp(-t / 40) + noise, norm="l2")
    yield exponential_sum(np.exp(-t[:, None, None] / np.arange(1, 10).reshape(3, 3)), order=9)
    yield elementwise(np.sin, (-1.0, 1.0), 1e-2)
    yield kolmogorov_arnold(lambda x: x.sum(-1), 2)
    yield from_convolution(np.exp(-t / 40)[None].repeat(20, 0))
    yield LongFilter(torch.randn(20, 3000), finite=True)
    converted = convert(nn.Sequential(nn.Conv1d(2, 2, 400, padding=399)), tol=1e-2)
    yield from converted.converted
    decoder = Decoder(ring, 60)
    yield decoder
    yield decoder.diagnosis
    yield SparseDecoder(ring, dct(100, 5))


def test_results_print_as_a_few_lines() -> None:
    for result in results():
        text = repr(result)
        assert len(text) < 1500, text
        assert text.count("\n") < 25, text
        assert "tensor(" not in text
        assert "array(" not in text
