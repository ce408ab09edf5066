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
    executor: str | None,
    minutes: int | None,
    options: dict[str, str],
) -> Any | None:
    """None: in this process, one after the other, with all its cores."""
    from stablessm import ArgumentError
    from stablessm.sweeps import Processes, RayCluster, Resources, Slurm
    from stablessm.sweeps import engine as engines

    if on not in ("processes", "ray", "slurm"):
        raise ArgumentError("--on", "processes, ray or slurm", repr(on))
    belongs = {"--address": ("ray", address), "--executor": ("slurm", executor), "--minutes": ("slurm", minutes)}
    for option, (where, given) in {**belongs, "--slurm": ("slurm", options or None)}.items():
        if given is not None and on != where:
            raise ArgumentError(option, f"--on {where} beside it", f"--on {on}")
    if on == "processes" and jobs is None and cpus is None and not gpus and memory is None:
        return None
    needs = Resources(1 if cpus is None else cpus, gpus, None if memory is None else engines.memory(memory))
    if on == "ray":
        return RayCluster(jobs, needs, retries, address)
    if on == "slurm":
        told: dict[str, Any] = {"executor": executor, "minutes": minutes}
        told = {name: value for name, value in told.items() if value is not None}
        return Slurm(jobs, needs, retries, options=options, **told)
    return Processes(1 if jobs is None else jobs, needs, retries)
