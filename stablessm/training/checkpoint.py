"""Checkpoints of training runs: safetensors files that contain tensors, settings and checksums.

A checkpoint is one file or, for a model in shards, a folder with one file per rank; any number of ranks can read
both. The random numbers of a step depend only on the seed and the number of the step, so no random state is stored.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from stablessm import _tensors, record
from stablessm._errors import ArgumentError
from stablessm.training.ranks import Ranks
from stablessm.training.settings import require_resumable

KEEP = 2
"""Number of checkpoints that are kept: the last checkpoint, and the previous one in case the last is damaged."""
_CONTENT = "content.json"
Like = Callable[[str, torch.Size, torch.dtype], Tensor]
"""Function from the name, full shape and dtype of a tensor to an empty tensor into which it is read, maybe sharded."""

Agree = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, tuple[Any, Any]]]
"""Function from the settings of a checkpoint and of this run to the old and new values of settings that differ."""


def whole_on_cpu(name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return an empty, unsharded CPU tensor, into which a tensor of a checkpoint will be read; ``name`` is ignored."""
    return torch.empty(shape, dtype=dtype)


@final
@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The content of a checkpoint: the state of a training run after a number of updates."""

    step: int
    """Number of updates made so far."""
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]
    """Plain values that change during the run, such as scores."""
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Old and new values of the settings that differ from the settings in the checkpoint that was read."""


@final
class Checkpoints:
    """Writes, reads and removes the checkpoints of one run, which are in one folder.

    Args:
        settings: Plain values that are written into every checkpoint, and compared when the run is resumed.
        ranks: The processes that train together (default: one).
        agree: Function that returns the changes between the settings of a checkpoint and of this run, and raises an
            error if the run cannot be resumed with these changes (default: every change raises an error).

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

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], ranks: Ranks | None = None, agree: Agree = require_resumable
    ) -> None:
        self.folder, self.settings, self.ranks, self.agree = folder, record.plain(settings), ranks or Ranks(), agree

    def save(self, checkpoint: Checkpoint, *, sharded: bool = False) -> None:
        """Write a checkpoint, and remove all checkpoints except the last ``KEEP``. If ``sharded``, every rank writes
        its shards of the tensors.
        """
        if sharded:
            self._write_folder(checkpoint)
        else:
            self.ranks.first(lambda: self._write_file(checkpoint))
        self.ranks.first(lambda: remove(*self.paths()[:-KEEP]))

    def load(self, *, last_good: bool = False, like: Like = whole_on_cpu) -> Checkpoint | None:
        """Read and return the last checkpoint, or None if there is no checkpoint.

        A damaged checkpoint raises an error that names its path. With ``last_good``, damaged checkpoints are skipped
        and removed, and the last undamaged checkpoint is read.

        Args:
            last_good: Whether to fall back to earlier checkpoints.
            like: Function (name, shape, dtype) that creates the tensor into which a tensor of a sharded checkpoint is
                read (default: an unsharded tensor on the CPU).
        """
        damaged: list[str] = []
        for path in reversed(self._shared_paths()):
            checkpoint, wrong = self._tried(path, like)
            if checkpoint is not None:
                self.ranks.first(lambda: remove(*self.paths()[self.paths().index(path) + 1 :]))  # noqa: B023 (now)
                return checkpoint
            damaged.append(wrong)
            if not last_good:
                break
        if damaged:
            before = ", or 'last-good' for the previous checkpoint" if len(damaged) < len(self.paths()) else ""
            raise ArgumentError("resume", f"an undamaged checkpoint{before}", "; ".join(damaged))
        return None

    def paths(self) -> list[Path]:
        """Return the paths of the checkpoints (files or folders), oldest first."""
        return sorted((*self.folder.glob("step-*.safetensors"), *self.folder.glob("step-*[0-9]")))

    def last_step(self) -> int:
        """Return the step of the last checkpoint (its number of updates), or 0 if there is no checkpoint."""
        return int(self.paths()[-1].stem.partition("-")[2]) if self.paths() else 0

    def _shared_paths(self) -> list[Path]:
        paths, newest = self.paths(), self.last_step()
        most, fewest, last = self.ranks.highest(len(paths), -len(paths), newest)
        if (len(paths), len(paths), newest) != (most, -fewest, last):
            raise ArgumentError("folder", "a folder that every rank can read", f"{self.folder}, not the same for all")
        return paths

    def _write_file(self, checkpoint: Checkpoint) -> None:
        text = json.dumps(self._content(checkpoint), ensure_ascii=False)
        _tensors.save(self.folder / f"{_name(checkpoint)}.safetensors", _tensors.packed(checkpoint.tensors), text)

    def _write_folder(self, checkpoint: Checkpoint) -> None:
        path, temporary = self.folder / _name(checkpoint), self.folder / f".{_name(checkpoint)}"

        def begin() -> None:
            remove(temporary)
            temporary.mkdir(parents=True)

        def finish() -> None:
            text = json.dumps(self._content(checkpoint), ensure_ascii=False)
            names = sorted(path.name for path in temporary.glob("shard-*.safetensors"))
            files = {name: bytes(digests[int(name.split("-")[1]) - 1].tolist()).hex() for name in names}
            record.write_json(temporary / _CONTENT, {"content": text, "files": files})
            remove(path)
            record.replace(temporary, path)

        self.ranks.first(begin)
        digests = self._write_shards(temporary, checkpoint.tensors)
        self.ranks.first(finish)

    def _write_shards(self, folder: Path, tensors: Mapping[str, Tensor]) -> Tensor:
        """Write the shards of this rank; return the SHA-256 of the file of each rank, one row per rank (zeros if a rank
        has no file). Only rank 0 may use the folder afterwards: it renames the folder.

        If all ranks have the same tensor, only one of the ranks writes this tensor.
        """
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
        own = sorted(folder.glob(f"shard-{self.ranks.rank + 1:05d}-*.safetensors"))
        digest = bytearray.fromhex(record.digest_of(own[0])) if own else bytearray(hashlib.sha256().digest_size)
        return self.ranks.gather(torch.frombuffer(digest, dtype=torch.uint8))

    def _content(self, checkpoint: Checkpoint) -> dict[str, Any]:
        return {"step": checkpoint.step, "settings": self.settings, "facts": record.plain(checkpoint.facts)}

    def _tried(self, path: Path, like: Like) -> tuple[Checkpoint | None, str]:
        """Read a checkpoint on all ranks; return the checkpoint, or None and the reason if any rank cannot read it."""
        found, wrong = None, f"{path}, which another rank cannot read"
        try:
            with record.reading(path, "a checkpoint"):
                found = self._read_folder(path, like) if path.is_dir() else _read_file(path)
        except (OSError, ArgumentError) as error:
            wrong = str(error)
        if self.ranks.highest(found is None)[0] or found is None:
            return None, wrong
        content, tensors = found
        settings = {name: value for name, value in self.settings.items() if name in content["settings"]}
        changed = self.agree(content["settings"], settings)
        return Checkpoint(int(content["step"]), tensors, content["facts"], changed), ""

    def _read_folder(self, path: Path, like: Like) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Read a sharded checkpoint from its folder; return its plain values and its tensors. Each rank verifies the
        checksums of some of the files.
        """
        written = record.read_json(path / _CONTENT)
        for name, digest in sorted(written["files"].items())[self.ranks.rank :: self.ranks.size]:
            record.require_digest(record.inside(path / name, path), digest)
        return _content(written["content"]), _read_shards(path, like)


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    text, tensors, seal = _tensors.load(path)
    if seal is None:
        raise ValueError("it has no checksum")
    return _content(text), tensors


def _content(text: str) -> dict[str, Any]:
    found = json.loads(text)
    return {"step": int(found["step"]), "settings": {**found["settings"]}, "facts": {**found["facts"]}}


def _read_shards(folder: Path, like: Like) -> dict[str, Tensor]:
    """Return all tensors of a sharded checkpoint by name, read without communication between ranks. ``like(name, shape,
    dtype)`` creates each tensor: a whole tensor, or a sharded tensor of which only this rank's shard is read.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    entries: dict[str, Any] = dict(HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata)
    tensors = {name: like(name, entry.size, entry.properties.dtype) for name, entry in entries.items()}
    with warnings.catch_warnings():
        # it warns that no_dist=True was guessed, but it is given
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    return tensors


def remove(*paths: Path) -> None:
    """Remove files, and folders with their content; missing paths are ignored."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _name(checkpoint: Checkpoint) -> str:
    return f"step-{checkpoint.step:09d}"
