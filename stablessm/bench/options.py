"""The options of every suite: device, shapes, dtypes, time limit and path of the record."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias, final

import torch

from stablessm._arguments import real_number, whole_number
from stablessm._errors import ArgumentError, quoted

Sizes: TypeAlias = tuple[tuple[int, ...], ...]


@final
@dataclass(frozen=True)
class Options:
    """The options of a benchmark suite. ``sizes`` and ``dtypes`` are None if the suite uses its own defaults.

    >>> Options.of(sizes="8x1024x256,1x64x3").sizes
    ((8, 1024, 256), (1, 64, 3))
    >>> Options(out=Path("here")).path("scan").as_posix()
    'here/scan-cpu.json'
    """

    device: str = "cpu"
    sizes: Sizes | None = None
    dtypes: tuple[str, ...] | None = None
    smoke: bool = False
    """True for tiny cases, which test that everything runs."""
    seconds: float = 1.0
    """Time limit for each contender in each case."""
    out: Path = Path("runs/bench")
    """A file that ends in .json, or a folder for ``SUITE-DEVICE.json``."""

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise ArgumentError("device", "cpu or cuda", quoted(self.device))
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ArgumentError("device", "cpu, because PyTorch finds no CUDA device here", "'cuda'")
        real_number("seconds", self.seconds, 0)

    @classmethod
    def of(cls, *, sizes: str | None = None, dtype: str | None = None, **others: Any) -> Self:
        """Parse options given as text, such as the sizes ``8x1024x256,1x64x3``."""
        return cls(
            sizes=None if sizes is None else tuple(_size(text) for text in sizes.split(",")),
            dtypes=None if dtype is None else tuple(name.strip() for name in dtype.split(",")),
            **others,
        )

    def path(self, suite: str) -> Path:
        """Return the path of the record that a suite writes."""
        return self.out if self.out.suffix == ".json" else self.out / f"{suite}-{self.device}.json"

    def pick_sizes(self, default: Collection[tuple[int, ...]], form: str) -> list[tuple[int, ...]]:
        """Return the sizes that the user gave, or the default sizes of the suite.

        The sizes must have as many numbers as ``form``, such as ``BATCHxTIMExCHANNELS``.
        """
        rank = form.count("x") + 1
        for size in self.sizes or ():
            if len(size) != rank:
                raise ArgumentError("sizes", form, "x".join(map(str, size)))
        return list(self.sizes or default)

    def pick_dtypes(self, default: Collection[str], known: Collection[str]) -> list[str]:
        """Return the dtypes that the user gave, or the default dtypes of the suite; raise an error for a dtype that the
        suite does not have.
        """
        for name in self.dtypes or ():
            if name not in known:
                raise ArgumentError("dtype", f"one of {', '.join(known)}", quoted(name))
        return list(self.dtypes or default)


def _size(text: str) -> tuple[int, ...]:
    try:
        return tuple(whole_number("sizes", int(part)) for part in text.strip().split("x"))
    except ValueError as error:
        raise ArgumentError("sizes", "whole numbers joined by x, such as 8x1024x256", repr(text.strip())) from error
