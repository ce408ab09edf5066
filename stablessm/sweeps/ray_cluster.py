"""An engine that computes jobs as tasks of a Ray cluster. Ray repeats a task whose worker or machine is lost."""

from __future__ import annotations

import signal
import socket
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from stablessm import _telemetry
from stablessm._checked import checked
from stablessm._errors import ArgumentError, quoted
from stablessm._optional import require
from stablessm.sweeps import worker
from stablessm.sweeps.engine import Resources, Retrying, Workers
from stablessm.sweeps.job import Job
from stablessm.sweeps.worker import Outcome

_PATIENCE = 10.0
"""Seconds within which a cluster must answer."""


@final
@checked
@dataclass(frozen=True)
class RayCluster(Retrying):
    """An engine that computes jobs on a Ray cluster. With an ``address``, this is the cluster at this address; with
    ``auto``, it is the running cluster of this machine. With None, it is the running cluster of this machine or, if
    there is none, a new cluster for this sweep.
    """

    address: str | None = None

    def __post_init__(self) -> None:
        if self.address is not None and not _answers(self.address):
            raise ArgumentError("--address", "auto, or the address of a Ray cluster that answers", quoted(self.address))
        require("ray", "--on ray")

    @contextmanager
    def _workers(self, placed: Mapping[Any, Job], count: int) -> Iterator[Workers]:
        ray = require("ray", "--on ray")

        def ended() -> list[tuple[Any, Outcome | str]]:
            return [(done, _outcome(ray, done)) for done in ray.wait(list(placed), num_returns=1)[0]]

        with self._connected(ray):
            task = ray.remote(**self._options())(worker.compute)
            try:
                yield lambda job: task.remote(job, self.resources.cpus), ended
            finally:
                for reference in placed:
                    ray.cancel(reference, force=True)

    def _options(self) -> dict[str, Any]:
        """Return the options of a Ray task. Ray repeats the task if its worker is lost, but not if the task raised an
        error.
        """
        memory = {} if self.resources.memory is None else {"memory": self.resources.memory}
        return {
            "num_cpus": self.resources.cpus,
            "num_gpus": self.resources.gpus,
            "max_retries": self.retries,
            "scheduling_strategy": "SPREAD",
            "runtime_env": {"env_vars": worker.threads(self.resources.cpus)},
            **memory,
        }

    def _require_room(self, ray: Any) -> None:
        """Check that a node of the cluster has enough resources for a job. If there is no such node, raise an error,
        because Ray would wait forever. If the user named the cluster by an address, only warn, because this cluster may
        still grow.
        """
        if not any(_has_room(node["Resources"], self.resources) for node in ray.nodes() if node["Alive"]):
            said = f"{self.resources.cpus} CPUs, {self.resources.gpus} GPUs, {self.resources.memory or 0} bytes"
            if self.address is None:
                raise ArgumentError("--cpus, --gpus, --memory", "resources that one node of the cluster has", said)
            warnings.warn(f"no node of the cluster has {said}: jobs wait for one", stacklevel=2)

    @contextmanager
    def _connected(self, ray: Any) -> Iterator[None]:
        if ray.is_initialized():
            yield
            return
        options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        handler = signal.getsignal(signal.SIGTERM)  # Ray installs its own handler and leaves it there
        try:
            ray.init(address=self.address or "auto", **options)
        except ConnectionError as error:
            if self.address is not None:
                raise ArgumentError("--address", "the address of a Ray cluster", quoted(self.address)) from error
            room = {} if self.jobs is None else {"num_cpus": self.jobs * self.resources.cpus}
            with worker.environment(_telemetry.ray()):
                ray.init(include_dashboard=False, **options, **room)
        try:
            self._require_room(ray)
            yield
        finally:
            ray.shutdown()
            if handler is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)


def _has_room(node: dict[str, float], resources: Resources) -> bool:
    wanted = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": resources.memory or 0}
    return all(node.get(name, 0) >= amount for name, amount in wanted.items())


def _answers(address: str) -> bool:
    """Return whether a Ray server accepts connections at the address; for ``auto``, return True. Without this check,
    Ray would retry for minutes.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return address == "auto"
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except (OSError, ValueError):
        return False
    return True


def _outcome(ray: Any, done: Any) -> Outcome:
    try:
        return ray.get(done)
    except ray.exceptions.RayError as error:
        return Outcome(f"{type(error).__name__}: {error}".strip())
