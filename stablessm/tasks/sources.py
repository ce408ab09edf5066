"""Finds data files in a folder that the user names or on the Hugging Face hub; errors name a damaged file."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from stablessm import _hub, record
from stablessm._errors import ArgumentError, MissingPackageError
from stablessm._optional import require
from stablessm._similar import did_you_mean

VARIABLE = "STABLESSM_DATA"
CACHE = "STABLESSM_CACHE"
"""Environment variable that names the cache folder."""
_Found = TypeVar("_Found")

FILES: Final[dict[str, tuple[int, str]]] = {
    "mnist.npz": (9_477_731, "a7ca5941ed14a4e275a85c70d92dc1ec30216050a9a8efb4cd648939b6ce6b80"),
    "cifar10_gray.npz": (47_154_969, "4a5c33528e8c471f4f53853b62082115174485a8719d5cd37a548c763d6a9925"),
    "imdb_train.jsonl.gz": (13_623_612, "0d046fabc443a31fcac349a9b6b7d5419e1cf154a34180699cce55915f68710e"),
    "imdb_test.jsonl.gz": (13_305_782, "9607c4a0edf2b7f00b8198b5824a78a8f9f35d9a17421e0fc9e64b5f4e3e4b4c"),
    "ETTh1.csv.gz": (405_601, "f1141f82f9d46968f05afa77ba16abfc4f790fe07583f9de06bb685b29a5411f"),
    "wikitext2_train.txt.gz": (3_677_325, "a8db99b9a74a9e4afcfb370ac135c7373b4a13584327b6647b5e640a09f3d918"),
    "wikitext2_valid.txt.gz": (373_475, "3cdd8cb5bb349a05840c7c3bef9578d90d64df77e27e0c25c033ba9342757ee3"),
    "wikitext2_test.txt.gz": (410_944, "688887879b4b526692cb2e423a516dcc5f6584a01fd3f33a8e164fbed2de8090"),
    "wikifa_train.txt.xz": (25_391_044, "c229b02be1bd2bc479eaa0c4949e0dc2830b786fffff0550851be4c2ca1b9747"),
    "wikifa_valid.txt.xz": (454_172, "4661b75e09945e390ee21215b00812040c2dcb125e25c2c32c0f9ed6aacf3e17"),
    "wikifa_test.txt.xz": (489_240, "9bbd44224e0438078a2405e2ec1af21b2eb7f18f0f451f7c4a85c84a4a5a2ba3"),
    "tinyshakespeare.txt.gz": (433_884, "13125fe8f49092165d7d489e3944db52d1ba546e64a60080cc9523bcd0c5e46a"),
}
"""Size in bytes and SHA-256 of known files. Another size is not an error: a file may be compressed differently."""

_UNPACK: Final[dict[str, Callable[[bytes], bytes]]] = {".gz": gzip.decompress, ".xz": lzma.decompress}

BROKEN: Final = (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
"""Errors that readers of a damaged file raise."""


def find(name: str) -> Path | None:
    """Return the path of a data file in the folder that STABLESSM_DATA names; None if this environment variable is not
    set.

    Raises an error if the file has the size of a known file but another checksum, because it is then damaged.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    path = Path(folder) / name
    if not path.is_file():
        raise ArgumentError(VARIABLE, f"a folder with {name} (without the variable, the hub is used)", folder)
    size, digest = FILES.get(name, (-1, ""))
    if path.stat().st_size == size and (came := record.digest_of(path)) != digest:
        raise ArgumentError(str(path), f"SHA-256 {digest}", f"{came}: the file is damaged, copy it again")
    return path


def arrays(path: Path, names: tuple[str, ...], *others: str) -> tuple[np.ndarray, ...]:
    """Read arrays from an ``.npz`` file, without pickle; raise an error if an array is missing or the file is damaged.

    Args:
        path: The file.
        names: Names of arrays that the file must have.
        others: Names of arrays that the file may have.
    """
    expected = f"{'an array' if len(names) == 1 else 'arrays'} {' and '.join(names)} in a whole .npz file"
    if not path.is_file():
        raise ArgumentError(str(path), expected, f"no such file{did_you_mean(path)}")
    try:
        with np.load(path, allow_pickle=False) as stored:
            there = (*names, *(name for name in others if name in stored.files))
            found = tuple(np.asarray(stored[name]) for name in there)
        if single := [name for name, array in zip(there, found, strict=True) if not array.ndim]:
            raise ValueError(f"{single[0]} has no axes")
        return found
    except (*BROKEN, AttributeError) as error:
        got = f"{path.stat().st_size:,} bytes ({type(error).__name__}: {error}){_known(path.name)}"
        raise ArgumentError(str(path), expected, got) from error


def text(path: Path, expected: str, decode: Callable[[bytes], str] = lambda c: c.decode("utf-8-sig")) -> str:
    """Read a text file, which may be compressed by gzip or xz.

    Args:
        path: The file.
        expected: Description of the content, for error messages.
        decode: Function from bytes to text (default: UTF-8).
    """
    try:
        return decode(_UNPACK.get(path.suffix, bytes)(path.read_bytes()))
    except BROKEN as error:
        raise ArgumentError(str(path), expected, f"{type(error).__name__}: {error}{_known(path.name)}") from error


def from_hub(data_set: str, split: str, name: str, *version: str) -> Any:
    """Load a split of a data set from the Hugging Face hub; requires the package ``datasets`` and a network.

    Args:
        data_set: Name of the data set.
        split: Name of the split.
        name: Name of a local file that can replace the download; error messages recommend this file.
        version: Version of the data set, if it has several.
    """
    return _asked("datasets", lambda hub: hub.load_dataset(data_set, *version, split=split), data_set, name)


def file_from_hub(data_set: str, path: str, name: str) -> Path:
    """Download one file of a data set from the Hugging Face hub and return its path. If the download fails, the error
    message recommends to put the file ``name`` into a local folder.
    """

    def download(hub: Any) -> Path:
        return Path(hub.hf_hub_download(data_set, path, repo_type="dataset"))

    return _asked("huggingface_hub", download, f"{data_set}/{path}", name)


def _asked(package: str, ask: Callable[[Any], _Found], what: str, name: str) -> _Found:
    remedy = f"a folder with {name} (or pip install {package}, and a network)"
    try:
        hub = require(package, what)
    except MissingPackageError as error:
        raise ArgumentError(VARIABLE, remedy, f"no such variable, and no package {package}") from error
    with _hub.cache_without_network() as unreachable:
        try:
            return ask(hub)
        except Exception as error:  # libraries raise many kinds of errors when they are offline
            why = f" ({unreachable})" if unreachable else ""
            raise ArgumentError(VARIABLE, remedy, f"no such variable, and {what} cannot be loaded{why}") from error


def cache_folder() -> Path:
    """Return the cache folder: the value of STABLESSM_CACHE, or ``stablessm`` in the user's cache folder."""
    named = os.environ.get(CACHE)
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stablessm"


def content_digest(*parts: np.ndarray | bytes) -> str:
    """Return the SHA-256 digest of the content of arrays or bytes. Unlike the digest of a file, it does not depend on
    how the file was compressed.

    >>> content_digest(np.arange(3, dtype=np.uint8))[:8]
    'ae4b3280'
    """
    found = hashlib.sha256()
    for part in parts:
        found.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).data)
    return found.hexdigest()


def _known(name: str) -> str:
    return f"; the whole file has {FILES[name][0]:,} bytes" if name in FILES else ""
