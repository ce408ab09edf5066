"""From options of the command line to the engine that computes jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EngineOptions:
    """Options of the command line that choose an engine, each under the name it has there."""

    on: str
    jobs: int | None
    cpus: int | None
    gpus: int
    memory: str | None
    retries: int
    address: str | None
    executor: str | None
    minutes: int | None
    slurm: dict[str, str]


def chosen_engine(given: EngineOptions) -> Any | None:
    """Return the engine; None for this process, one job after the other, with all its cores."""
    from stablessm import ArgumentError
    from stablessm.sweeps import Processes, RayCluster, Resources, Slurm
    from stablessm.sweeps import engine as engines

    if given.on not in ("processes", "ray", "slurm"):
        raise ArgumentError("--on", "processes, ray or slurm", repr(given.on))
    belongs = {"address": "ray", "executor": "slurm", "minutes": "slurm", "slurm": "slurm"}
    for option, where in belongs.items():
        if getattr(given, option) not in (None, {}) and given.on != where:
            raise ArgumentError(f"--{option}", f"--on {where} beside it", f"--on {given.on}")
    memory = None if given.memory is None else engines.memory(given.memory)
    if given.on == "processes" and (given.jobs, given.cpus, given.gpus, memory) == (None, None, 0, None):
        return None
    needs = Resources(1 if given.cpus is None else given.cpus, given.gpus, memory)
    if given.on == "ray":
        return RayCluster(given.jobs, needs, given.retries, given.address)
    if given.on == "slurm":
        told: dict[str, Any] = {"executor": given.executor, "minutes": given.minutes}
        told = {name: value for name, value in told.items() if value is not None}
        return Slurm(given.jobs, needs, given.retries, options=given.slurm, **told)
    return Processes(1 if given.jobs is None else given.jobs, needs, given.retries)
