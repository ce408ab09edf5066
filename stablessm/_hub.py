"""Keeps the libraries of the Hugging Face hub from retrying for half a minute when there is no network.

This module does not import torch.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from stablessm._errors import MissingPackageError
from stablessm._optional import require

_ENDPOINT = "https://huggingface.co"
_LONGEST = 3.0
"""Number of seconds after which a connection counts as impossible."""


@contextlib.contextmanager
def cache_without_network() -> Iterator[str]:
    """Test whether the hub can be reached. If not, let Hugging Face libraries use only downloaded files inside the
    ``with`` block.

    Yields the reason why the hub cannot be reached, or an empty text.
    """
    try:
        require("huggingface_hub", "the Hugging Face hub")
    except MissingPackageError:  # the library that needs this package reports the lack of it
        yield ""
        return
    constants: Any = importlib.import_module("huggingface_hub.constants")
    why, before = unreachable(), constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or bool(why)  # the libraries read it at every request
    try:
        yield why
    finally:
        constants.HF_HUB_OFFLINE = before


def unreachable() -> str:
    """Return the reason why the hub cannot be reached, or an empty text if it can.

    The test takes at most three seconds. Behind a proxy, which looks up the address itself, nothing is tested and the
    result is an empty text, unless the variable HF_HUB_OFFLINE is set.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return "HF_HUB_OFFLINE is set"
    if {"https", "http", "all"} & urllib.request.getproxies().keys():
        return ""
    address = urlsplit(os.environ.get("HF_ENDPOINT") or _ENDPOINT)
    host, port = address.hostname or "", address.port or (80 if address.scheme == "http" else 443)
    said = [f"no answer from {host} in {_LONGEST:g} seconds"]
    attempt = threading.Thread(target=_connect, args=(host, port, said), daemon=True)
    attempt.start()  # a thread, because looking up an address has no time limit
    attempt.join(_LONGEST)
    return said[-1]


def _connect(host: str, port: int, said: list[str]) -> None:
    """Try to connect to a host. Append to ``said`` the reason for a failure, or an empty text after success."""
    try:
        socket.create_connection((host, port), _LONGEST).close()
        said.append("")
    except OSError as error:
        said.append(f"{host} cannot be reached: {error.strerror or error}")
