"""The options of ``stablessm run`` that choose where jobs run, how many at once, and with which resources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from stablessm._errors import ArgumentError
from stablessm.cli.options import option, pairs


@final
@dataclass(frozen=True)
class EngineOptions:
    """The options of ``stablessm run`` that choose the engine (of ``stablessm.sweeps``) and the resources for
    its jobs.
    """

    jobs: int | None = option(None, "Maximum number of parallel jobs (default: 1; no limit with --on ray or slurm).")
    on: str = option(
        "processes", "Where jobs run: processes (of this machine), ray or slurm.", words=("processes", "ray", "slurm")
    )
    cpus: int | None = option(None, "Number of cores per job (default: 1 if jobs run in parallel, otherwise all).")
    gpus: int = option(0, "Number of GPUs per job; a job sees only its own GPUs.")
    memory: str | None = option(None, "Memory per job, such as 4GB; requires --on ray or slurm.")
    retries: int = option(2, "Number of times that a job is repeated after its worker was lost.")
    address: str | None = option(None, "Address of a Ray cluster; requires --on ray.")
    executor: str | None = option(
        None, "How --on slurm runs jobs: slurm (default), or local (processes, for a test).", words=("slurm", "local")
    )
    minutes: int | None = option(None, "Time limit per job in minutes; requires --on slurm (default: 1440).")
    slurm: list[str] | None = option(
        None, "Option of sbatch as KEY=VALUE, such as partition=gpu; requires --on slurm; repeatable."
    )

    def engine(self) -> Any | None:
        """Return the engine that the options choose, or None to run all jobs one after the other in this process."""
        from stablessm import sweeps
        from stablessm.sweeps.engine import memory

        slurm = pairs("--slurm", self.slurm)
        for name, where in {"address": "ray", "executor": "slurm", "minutes": "slurm", "slurm": "slurm"}.items():
            if getattr(self, name) is not None and self.on != where:
                raise ArgumentError(f"--{name}", f"--on {where}", f"--on {self.on}")
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
