"""Tensors that several ranks hold in shards, as a folder of safetensors files that any number of ranks can read.

PyTorch's distributed checkpoints do it, in their safetensors form: a file a rank, and where its shards belong.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from stablessm.training.ranks import Ranks

Like = Callable[[str, torch.Size, torch.dtype], Tensor]
"""From a tensor's name, whole shape and dtype to one that is to hold it: whole, or in shards."""


def anywhere(name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Whole, on the CPU."""
    return torch.empty(shape, dtype=dtype)


def write(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, str]:
    """Each rank its shards, and of what all have one copy; the SHA-256 of each file. To be called by all ranks."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    own = sorted(folder.glob(f"shard-{ranks.rank + 1:05d}-*.safetensors"))
    digest = bytearray.fromhex(digest_of(own[0])) if own else bytearray(hashlib.sha256().digest_size)
    digests = ranks.gather(torch.frombuffer(digest, dtype=torch.uint8))
    files = sorted(folder.glob("shard-*.safetensors"))
    return {path.name: bytes(digests[int(path.name.split("-")[1]) - 1].tolist()).hex() for path in files}


def read(folder: Path, like: Like) -> dict[str, Tensor]:
    """Every tensor of the folder, or this rank's shards of it; no rank waits for another."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    tensors = {name: like(name, entry.size, entry.properties.dtype) for name, entry in found.items()}  # type: ignore[union-attr]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # it guesses what no_dist says
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    return tensors


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
