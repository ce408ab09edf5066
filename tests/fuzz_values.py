"""Values that nobody should pass: any type, any shape, any number. Drawn at random, the same for the same seed."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import functools
import io
import itertools
import math
import random
import types
from collections.abc import Callable
from pathlib import Path, PurePosixPath
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
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.float8_e4m3fn,
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
    np.float64(math.nan),
    np.array(3),
    np.array(0.5),
    np.complex64(1j),
    np.datetime64("NaT"),
    decimal.Decimal("0.5"),
    decimal.Decimal("nan"),
    fractions.Fraction(1, 3),
    2**63,
    -(2**63) - 1,
    10**400,
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
    "5",
    "-1",
    "1e5",
    "0.5",
    "1,5",
    "0x10",
    "True",
    "None",
    " best",
    "BEST",
    "cpu",
    "cuda:99",
    "/",
    ".",
    "..",
    "~",
    "/dev/null",
    "/dev/full",
    "missing/folder/file.npz",
    "file:///etc",
    "\ud800",
    "\N{PILE OF POO}",
    "x" * 3000,
    "a\x00b",
    b"",
    b"abc",
    bytearray(8),
)


class Color(enum.Enum):
    RED = "scan"


class Indexed:
    """Has ``__index__``, so that Python takes it for a whole number."""

    def __index__(self) -> int:
        return 3


class Stubborn:
    """Raises whatever is asked of it."""

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no array")


class Odd(Tensor):
    """A subclass of Tensor."""


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


def circular() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


def packed() -> Any:
    return nn.utils.rnn.pack_sequence([torch.randn(3, 2), torch.randn(2, 2)])


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
    lambda: (n for n in range(3)),
    lambda: (_ for _ in ()),
    itertools.count,
    lambda: map(str, range(3)),
    lambda: memoryview(b"abcd"),
    lambda: slice(3),
    lambda: NotImplemented,
    lambda: type(None),
    lambda: Path("/"),
    lambda: Path("."),
    lambda: Path("missing") / "file",
    lambda: io.StringIO("text"),
    lambda: io.BytesIO(b"PK"),
    lambda: collections.OrderedDict(a=1),
    lambda: collections.namedtuple("Pair", "a b")(1, 2),
    lambda: types.SimpleNamespace(shape=(2,), dtype="float32"),
    lambda: {"x": None, "d_input": "2", "seed": -1},
    lambda: {(): ()},
    lambda: {None: torch.ones(2)},
    lambda: frozenset({1}),
    lambda: complex,
    lambda: functools.partial(max, 1),
    lambda: Color.RED,
    lambda: Color,
    Indexed,
    Stubborn,
    circular,
    lambda: nested(3),
    lambda: nested(3000),
    packed,
    lambda: torch.Size([2, 3]),
    lambda: torch.Generator(),
    lambda: torch.nn.Parameter(torch.randn(2, 3)),
    lambda: torch.randn(2, 5, 2).as_subclass(Odd),
    lambda: torch.quantize_per_tensor(torch.randn(2, 5, 2), 0.1, 0, torch.quint8),
    lambda: torch.randn(2, 3).to_sparse_csr(),
    lambda: torch.randn(2, 5, 2, requires_grad=True) * 2,
    lambda: nn.LazyLinear(3),
    lambda: nn.ModuleList([nn.Linear(2, 2)]),
    lambda: nn.ModuleDict(),
    lambda: nn.LSTM(2, 3, batch_first=True),
    lambda: np.array("a"),
    lambda: np.array([1.0, None], dtype=object),
    lambda: np.array(["2020-01-01"], dtype="datetime64[D]"),
    lambda: np.zeros(2, dtype=[("a", "f4"), ("b", "i8")]),
    lambda: np.array([b"ab"]),
    lambda: np.matrix([[1.0, 2.0]]),
    lambda: np.float16([1, 2]),
    lambda: np.zeros((2, 5, 2), dtype=">f4"),
    lambda: np.zeros((4, 3))[::-1, ::-1],
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


def _shifted(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(b"x" + array.tobytes(), array.dtype, offset=1).reshape(array.shape)


def _locked(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "reversed": lambda array: np.ascontiguousarray(array[::-1])[::-1],
    "other byte order": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "odd address": _shifted,
    "read-only": _locked,
    "columns first": np.asfortranarray,
}
"""The same array in other memory."""


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
        lambda: rng.choice(tuple(LAYOUTS.values()))(values.detach().double().numpy()),
        lambda: torch.nested.nested_tensor(list(values)),
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
        usual = isinstance(made, Tensor) and made.layout == torch.strided and made.device.type == "cpu"
        return (
            made.detach().resolve_conj().numpy()
            if usual and not made.is_nested and made.dtype != torch.bfloat16
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
        if rng.random() < 0.2:
            return {other: good[other] for other in good if other != key}
        return good | {rng.choice((key, "unknown", 3, -1)): value(rng)}
    if isinstance(good, str) and rng.random() < 0.5:
        return rng.choice((good.upper(), f" {good}", good[:-1], good.encode(), [good], Path(good), list(good)))
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
