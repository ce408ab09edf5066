"""``stablessm env``: shows installed versions, devices and scan backends."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from stablessm.cli import tables
from stablessm.cli.options import option
from stablessm.cli.output import note

_NVIDIA = Path("/proc/driver/nvidia/gpus")
"""Where the NVIDIA driver of Linux describes each GPU."""


def describe() -> dict[str, Any]:
    """Return versions and devices as plain data, without importing PyTorch."""
    from stablessm import _provenance

    machine = _provenance.hardware()
    devices = {"cpu": f"{machine['cpu']} ({machine['machine']}), {machine['cores']} cores"}
    return {
        "versions": dict.fromkeys(("python", "stablessm", *_provenance.PACKAGES), "not installed")
        | _provenance.versions(),
        "commit": _provenance.commit(),
        "devices": devices | {f"gpu {i}": model for i, model in enumerate(_gpu_models())},
    }


def check() -> dict[str, Any]:
    """Return the devices that PyTorch finds and, for each scan backend, whether a small scan ran on this machine."""
    import torch

    from stablessm import _provenance, scan

    machine = _provenance.hardware()
    devices = {"cpu": f"{machine['cpu']} ({machine['machine']}), {machine['threads']} threads"}
    for i in range(torch.cuda.device_count()):
        devices[f"cuda:{i}"] = torch.cuda.get_device_name(i)
    return {
        "kernels": _kernel_cpu(),
        "devices": devices,
        "auto": {name: scan.resolve("auto", torch.device(name)) for name in devices},
        "backends": {name: asdict(scan.probe(name)) for name in scan.NAMES},
    }


def _gpu_models() -> list[str]:
    """Return the names of the GPUs that NVIDIA's Linux driver lists; an empty list on other systems."""
    try:
        texts = [(folder / "information").read_text(encoding="utf-8") for folder in sorted(_NVIDIA.iterdir())]
    except OSError:
        return []
    return [text.partition("Model:")[2].partition("\n")[0].strip() or "unknown" for text in texts]


def _kernel_cpu() -> str:
    """Return the name of the processor for which CPU kernels are compiled, or the reason why none can be compiled."""
    try:
        from stablessm.llvm.target import cpu_name

        return cpu_name()
    except (ImportError, OSError, ValueError) as error:
        return f"none: {error}"


def env(
    checked: bool = option(False, "Import PyTorch, run every scan backend, and show which backend is used.", "--check"),
) -> dict[str, Any]:
    """Show installed versions and devices.

    With --check, PyTorch is imported and every scan backend runs once, to show which ones work here.

    Examples:

      stablessm env
      stablessm env --check
      stablessm env --check --json      for a bug report
    """
    found = describe() | (check() if checked else {})
    versions = [*found["versions"].items(), ("commit of stablessm", found["commit"] or "unknown")]
    tables.show(("package", "version"), versions, title="versions")
    if not checked:
        tables.show(("device", "model"), found["devices"].items(), title="devices")
        note("stablessm env --check runs every scan backend once and shows which backend is used")
        return found
    devices = ((name, what, found["auto"][name]) for name, what in found["devices"].items())
    tables.show(("device", "model", "scan backend (auto)"), devices, title="devices")
    backends = ((name, "yes" if probe["ran"] else "no", probe["detail"]) for name, probe in found["backends"].items())
    tables.show(("backend", "works", "detail"), backends, title="scan backends, after a trial run")
    typer.echo(f"CPU kernels are compiled for: {found['kernels']} (set STABLESSM_CPU for another processor)")
    return found
