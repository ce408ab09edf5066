"""``stablessm env``: versions, devices, and which scan backend will be used, after running it."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from importlib import metadata
from typing import Annotated, Any

import typer

PACKAGES = ("torch", "numpy", "llvmlite", "triton", "transformers", "jax")


def describe() -> dict[str, Any]:
    """Everything the command prints, as plain data."""
    import torch

    import stablessm
    from stablessm import scan

    versions = {"stablessm": stablessm.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    devices = {"cpu": f"{platform.machine()}, {torch.get_num_threads()} threads"}
    for i in range(torch.cuda.device_count()):
        devices[f"cuda:{i}"] = torch.cuda.get_device_name(i)
    return {
        "kernels": _kernel_cpu(),
        "versions": versions,
        "devices": devices,
        "auto": {name: scan.resolve("auto", torch.device(name)) for name in devices},
        "backends": {name: asdict(scan.probe(name)) for name in scan.NAMES},
    }


def _kernel_cpu() -> str:
    """The processor that CPU kernels are compiled for, or why there is none."""
    try:
        from stablessm.scan.target import cpu_name

        return cpu_name()
    except (ImportError, OSError, ValueError) as error:
        return f"none: {error}"


def env(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Versions, devices, and which scan backend will be used, each backend after a trial run.

    Example: stablessm env --json
    """
    found = describe()
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    versions = Table("package", "version", title="versions", title_justify="left")
    for row in found["versions"].items():
        versions.add_row(*row)
    devices = Table("device", "what", "scan backend (auto)", title="devices", title_justify="left")
    for name, what in found["devices"].items():
        devices.add_row(name, what, found["auto"][name])
    backends = Table("backend", "ran", "detail", title="scan backends, tried just now", title_justify="left")
    for name, probe in found["backends"].items():
        backends.add_row(name, "yes" if probe["ran"] else "no", probe["detail"])
    for table in (versions, devices, backends):
        console.print(table)
    console.print(f"CPU kernels are compiled for: {found['kernels']} (STABLESSM_CPU chooses another processor)")
