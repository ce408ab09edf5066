"""Checkpoints: one safetensors file each, with its settings and a checksum inside. Whole, or an error that says which.

What is random in a step follows from the seed and the number of the step, so that no random state has to be kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from stablessm import record
from stablessm._errors import ArgumentError
from stablessm.training.settings import plain, require_same

KEEP = 2
"""How many are kept: the last, and the one before in case that is damaged."""


@final
@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A moment of a run."""

    step: int
    """Updates made so far."""
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]
    """Plain values that change along the run."""


@final
class Checkpoints:
    """The checkpoints of one run, in ``folder``.

    Args:
        settings: plain values that a run must share with the checkpoint it goes on from.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> Checkpoints(Path(folder.name), {"lr": 0.1}).save(Checkpoint(7, {"w": torch.ones(2)}, {"seconds": 3.0}))
    >>> Checkpoints(Path(folder.name), {"lr": 0.1}).load().tensors
    {'w': tensor([1., 1.])}
    >>> Checkpoints(Path(folder.name), {"lr": 0.2}).load()
    Traceback (most recent call last):
    ...
    stablessm._errors.ArgumentError: resume: expected the settings the run began with (lr = 0.1), got lr = 0.2
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder, self.settings = folder, plain(settings)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write one, then remove all but the last ``KEEP``."""
        from safetensors.torch import save_file

        tensors = packed(checkpoint.tensors)
        content = {"step": checkpoint.step, "settings": self.settings, "facts": record.plain(checkpoint.facts)}
        text = json.dumps(content, ensure_ascii=False)
        path = self.folder / f"step-{checkpoint.step:09d}.safetensors"
        with record.atomic(path) as temporary:
            save_file(tensors, temporary, metadata={"content": text, "sha256": _digest(text, tensors)})
        for old in self.paths()[:-KEEP]:
            old.unlink()

    def load(self, *, last_good: bool = False) -> Checkpoint | None:
        """The last one, None if there is none.

        A damaged one is an error that names it; with ``last_good`` it is removed and the one before taken.
        """
        damaged: list[str] = []
        for path in reversed(self.paths()):
            try:
                checkpoint = self._read(path)
            except _DamagedError as error:
                damaged.append(f"{path} ({error})")
                if not last_good:
                    break
                continue
            for bad in self.paths()[self.paths().index(path) + 1 :]:
                bad.unlink()
            return checkpoint
        if damaged:
            expected = "a whole checkpoint" if last_good else "a whole checkpoint, or 'last-good' for the one before"
            raise ArgumentError("resume", expected, "; ".join(damaged))
        return None

    def paths(self) -> list[Path]:
        """The files, oldest first."""
        return sorted(self.folder.glob("step-*.safetensors"))

    def _read(self, path: Path) -> Checkpoint:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise _DamagedError(f"{type(error).__name__}: {error}") from error
        text = metadata.get("content", "")
        if _digest(text, tensors) != metadata.get("sha256"):
            raise _DamagedError("its checksum is not that of its content")
        content = json.loads(text)
        require_same("resume", "the settings the run began with", content["settings"], self.settings)
        return Checkpoint(int(content["step"]), tensors, content["facts"])


def packed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU, as safetensors wants them: in order, and none a view of another."""
    return {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}


class _DamagedError(Exception):
    """A file that is not what was written."""


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Of the settings and of every bit of every tensor, with names, shapes and dtypes."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
