"""Values that nobody should pass: any type, any shape, any number. Drawn at random, the same for the same seed."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    300,
    -300,
    2**31,
    -(2**31),
    2**40,
    10**18,
    10**30,
    True,
    False,
    0.0,
    -0.0,
    0.5,
    1.5,
    -1.5,
    1e-320,
    1e308,
    -1e308,
    math.nan,
    math.inf,
    -math.inf,
    1 + 2j,
    complex(math.nan, 0),
    np.int64(3),
    np.float32(0.5),
    np.bool_(1),
)
TEXTS = (
    "",
    "a",
    "auto",
    "best",
    "scan",
    "discrete",
    "0",
    "nan",
    "é\n",
    "x" * 3000,
    "a\x00b",
    b"",
    b"abc",
    bytearray(8),
)
OTHERS: tuple[Callable[[], Any], ...] = (
    object,
    list,
    tuple,
    dict,
    set,
    lambda: [1],
    lambda: [1.0, math.nan],
    lambda: ["a"],
    lambda: [None, None],
    lambda: [[1, 2], [3]],
    lambda: {"a": 1},
    lambda: {1: None},
    lambda: range(3),
    lambda: range(0),
    lambda: iter([]),
    lambda: int,
    lambda: len,
    lambda: lambda: None,
    lambda: lambda x: x,
    lambda: lambda *_, **__: "text",
    lambda: lambda *_, **__: None,
    lambda: ValueError("value"),
    lambda: nn.Linear(2, 3),
    lambda: nn.Identity(),
    nn.Module,
    lambda: nn.Linear,
    lambda: torch.device("cpu"),
    lambda: torch.device("meta"),
    lambda: torch.float32,
    lambda: PurePosixPath("a"),
    lambda: datetime.date(2020, 1, 1),
    lambda: (1, 2),
    lambda: (3.0, -1.0),
    lambda: ...,
)


def tensor(rng: random.Random) -> Tensor:
    """A tensor of any rank, dtype, layout and content."""
    shape = [rng.choice((0, 1, 1, 2, 2, 3, 5)) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 3, 4)))]
    return filled(rng, shape, rng.choice(DTYPES))


def filled(rng: random.Random, shape: list[int], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    if values.numel() and rng.random() < 0.3:
        values.view(-1)[rng.randrange(values.numel())] = rng.choice((math.nan, math.inf, -math.inf, 1e308, 0.0))
    if not dtype.is_floating_point and not dtype.is_complex:
        values = values.nan_to_num(0, 9, -9).clamp(-9, 9)
    return values.to(dtype)


def disguised(rng: random.Random, values: Tensor) -> Any:
    """The same numbers in another form: an array, a list, a parameter, other strides, another device."""
    forms: tuple[Callable[[], Any], ...] = (
        lambda: values,
        lambda: values,
        lambda: values.detach().float().numpy(),
        lambda: values.tolist(),
        lambda: nn.Parameter(values, requires_grad=values.is_floating_point()),
        lambda: values.to("meta"),
        lambda: values[..., None].expand(*values.shape, 2)[..., 0],
        lambda: values.transpose(0, -1),
        values.to_sparse,
        lambda: np.ma.masked_array(values.detach().float().numpy()),
        lambda: values.detach().float().numpy().astype(object),
        lambda: values.detach().float().numpy().astype(str),
        lambda: values.conj(),
        lambda: values.unbind(0),
    )
    try:
        return rng.choice(forms)()
    except (RuntimeError, IndexError, TypeError):  # no such form of these numbers
        return values


def near(rng: random.Random, good: Any) -> Any:
    """A value that is almost right: another shape, dtype or sign, a NaN in it, one entry too few or too many."""
    if isinstance(good, np.ndarray) and good.dtype.kind in "fciub":
        made = near(rng, torch.from_numpy(np.array(good)))
        return (
            made.detach().resolve_conj().numpy()
            if isinstance(made, Tensor)
            and made.device.type == "cpu"
            and (made.layout == torch.strided and made.dtype != torch.bfloat16)
            else made
        )
    if isinstance(good, Tensor):
        shape = list(good.shape)
        change = rng.randrange(5)
        if change == 0 and shape:
            shape[rng.randrange(len(shape))] += rng.choice((-1, 1, 2))
        elif change == 1:
            shape.insert(rng.randrange(len(shape) + 1), rng.choice((0, 1, 2)))
        elif change == 2 and shape:
            shape.pop(rng.randrange(len(shape)))
        dtype = rng.choice(DTYPES) if change == 3 else good.dtype
        return disguised(rng, filled(rng, [max(0, size) for size in shape], dtype))
    if isinstance(good, bool):
        return rng.choice((None, 0, 1, "yes", not good))
    if isinstance(good, int | float):
        return rng.choice((-good, good + 0.5, float(good), str(good), [good], None, torch.tensor(good), good * 1j, 0))
    if isinstance(good, tuple | list):
        items = list(good)
        change = rng.randrange(4)
        if change == 0:
            items = items[:-1]
        elif change == 1:
            items = [*items, items[-1] if items else None]
        elif items:
            place = rng.randrange(len(items))
            items[place] = near(rng, items[place]) if change == 2 else value(rng)
        return type(good)(items) if type(good) in (tuple, list) else tuple(items)
    if isinstance(good, dict) and good:
        key = rng.choice(list(good))
        return good | {rng.choice((key, "unknown", 3, -1)): value(rng)}
    return value(rng)


def value(rng: random.Random) -> Any:
    """Anything."""
    kind = rng.random()
    if kind < 0.1:
        return None
    if kind < 0.4:
        return rng.choice(NUMBERS)
    if kind < 0.55:
        return rng.choice(TEXTS)
    if kind < 0.75:
        return rng.choice(OTHERS)()
    return disguised(rng, tensor(rng))
