"""``stablessm env``: versions, devices, and which scan backend will be used, after running it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from stablessm.cli import tables


def describe() -> dict[str, Any]:
    """Everything the command prints, as plain data."""
    import torch

    from stablessm import _provenance, scan

    machine = _provenance.hardware()
    devices = {"cpu": f"{machine['cpu']} ({machine['machine']}), {machine['threads']} threads"}
    for i in range(torch.cuda.device_count()):
        devices[f"cuda:{i}"] = torch.cuda.get_device_name(i)
    return {
        "versions": dict.fromkeys(("python", "stablessm", *_provenance.PACKAGES), "not installed")
        | _provenance.versions(),
        "commit": _provenance.commit(),
        "kernels": _kernel_cpu(),
        "devices": devices,
        "auto": {name: scan.resolve("auto", torch.device(name)) for name in devices},
        "backends": {name: asdict(scan.probe(name)) for name in scan.NAMES},
    }


def _kernel_cpu() -> str:
    """The processor that CPU kernels are compiled for, or why there is none."""
    try:
        from stablessm.llvm.target import cpu_name

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
    versions = [*found["versions"].items(), ("commit of stablessm", found["commit"] or "unknown")]
    tables.show(("package", "version"), versions, title="versions")
    devices = ((name, what, found["auto"][name]) for name, what in found["devices"].items())
    tables.show(("device", "what", "scan backend (auto)"), devices, title="devices")
    backends = ((name, "yes" if probe["ran"] else "no", probe["detail"]) for name, probe in found["backends"].items())
    tables.show(("backend", "ran", "detail"), backends, title="scan backends, tried just now")
    typer.echo(f"CPU kernels are compiled for: {found['kernels']} (STABLESSM_CPU chooses another processor)")
