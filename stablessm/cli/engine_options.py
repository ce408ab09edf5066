"""From options of the command line to the engine that computes jobs."""

from __future__ import annotations

from typing import Any


def chosen_engine(
    on: str,
    *,
    jobs: int | None,
    cpus: int | None,
    gpus: int,
    memory: str | None,
    retries: int,
    address: str | None,
    executor: str,
    minutes: int,
    options: dict[str, str],
) -> Any | None:
    """None: in this process, one after the other, with all its cores."""
    from stablessm import ArgumentError
    from stablessm.sweeps import Processes, RayCluster, Resources, Slurm
    from stablessm.sweeps import engine as engines

    if on not in ("processes", "ray", "slurm"):
        raise ArgumentError("--on", "processes, ray or slurm", repr(on))
    if address is not None and on != "ray":
        raise ArgumentError("--address", "--on ray beside it", f"--on {on}")
    if options and on != "slurm":
        raise ArgumentError("--slurm", "--on slurm beside it", f"--on {on}")
    if on == "processes" and jobs is None and cpus is None and not gpus and memory is None:
        return None
    needs = Resources(1 if cpus is None else cpus, gpus, None if memory is None else engines.memory(memory))
    if on == "ray":
        return RayCluster(jobs, needs, retries, address)
    if on == "slurm":
        return Slurm(jobs, needs, retries, executor, minutes, options)  # type: ignore[arg-type]
    return Processes(1 if jobs is None else jobs, needs, retries)
