"""From options of the command line to the engine that computes jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, final

import typer

from stablessm._errors import ArgumentError
from stablessm.cli.options import pairs


@final
@dataclass(frozen=True)
class EngineOptions:
    """Options of the command line that choose an engine."""

    jobs: Annotated[
        int | None, typer.Option(help="Jobs at once; without it one run after the other, or all there is room for.")
    ] = None
    on: Annotated[str, typer.Option(help="Where jobs run: processes (of this machine), ray or slurm.")] = "processes"
    cpus: Annotated[int | None, typer.Option(help="Cores for each job; 1 where jobs run side by side.")] = None
    gpus: Annotated[int, typer.Option(help="Number of GPUs for each job; a job sees only its own GPUs.")] = 0
    memory: Annotated[str | None, typer.Option(help="For each job, such as 4GB; with --on ray or slurm.")] = None
    retries: Annotated[int, typer.Option(help="How often a job whose worker is lost is given to another.")] = 2
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster, with --on ray.")] = None
    executor: Annotated[
        str | None, typer.Option(help="With --on slurm: slurm (the default), or local to try it here.")
    ] = None
    minutes: Annotated[int | None, typer.Option(help="With --on slurm: what a job may take; 1440 by default.")] = None
    slurm: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE for sbatch, such as partition=gpu; repeatable.")
    ] = None

    def engine(self) -> Any | None:
        """Return the engine; None for this process, one job after the other, with all its cores."""
        from stablessm import sweeps
        from stablessm.sweeps.engine import memory

        slurm = pairs("--slurm", self.slurm)
        if self.on not in ("processes", "ray", "slurm"):
            raise ArgumentError("--on", "processes, ray or slurm", repr(self.on))
        for option, where in {"address": "ray", "executor": "slurm", "minutes": "slurm", "slurm": "slurm"}.items():
            if getattr(self, option) is not None and self.on != where:
                raise ArgumentError(f"--{option}", f"--on {where} beside it", f"--on {self.on}")
        needed = None if self.memory is None else memory(self.memory)
        if self.on == "processes" and (self.jobs, self.cpus, self.gpus, needed) == (None, None, 0, None):
            return None
        needs = sweeps.Resources(1 if self.cpus is None else self.cpus, self.gpus, needed)
        if self.on == "ray":
            return sweeps.RayCluster(self.jobs, needs, self.retries, self.address)
        if self.on == "slurm":
            told: dict[str, Any] = {"executor": self.executor, "minutes": self.minutes}
            told = {name: value for name, value in told.items() if value is not None}
            return sweeps.Slurm(self.jobs, needs, self.retries, options=slurm, **told)
        return sweeps.Processes(1 if self.jobs is None else self.jobs, needs, self.retries)
