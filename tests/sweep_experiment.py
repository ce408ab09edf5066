"""A small experiment of several jobs that take as long as they are told, and count what they compute."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from stablessm.experiments.frame import run as run_module
from stablessm.experiments.frame.base import Claim, Experiment
from stablessm.experiments.frame.run import Run
from stablessm.report.figure import Figure

run_module.CHECKPOINT_SECONDS = 0.0


@dataclass(frozen=True)
class Config:
    walks: int = 4
    steps: int = 5
    pause: float = 0.0
    """Seconds a step."""
    tally: str = ""
    """A file that gets a line for each step that is computed."""
    fails: int = -1
    """The walk that cannot be computed, while there is a tally."""


def walk(config: Config, seed: int, run: Run) -> None:
    name = f"walk-{seed}"

    def compute() -> Mapping[str, np.ndarray]:
        if seed == config.fails and Path(config.tally).exists():
            raise RuntimeError("lost my way")
        state = {"x": np.zeros(3)}
        for step in run.loop(name, config.steps, lambda: state, state.update):
            state["x"] = 0.9 * state["x"] + np.random.default_rng([seed, step]).standard_normal(3)
            run.log(name, step=step, x=state["x"][0])
            time.sleep(config.pause)
            if config.tally:
                with Path(config.tally).open("a", encoding="utf-8") as file:
                    file.write(f"{seed} {step}\n")
        return state

    run.stage(name, compute)


def jobs(config: Config) -> dict[str, Callable[[Run], None]]:
    return {f"walk-{seed}": partial(walk, config, seed) for seed in range(config.walks)}


def run(config: Config, run: Run) -> None:
    for job in jobs(config).values():
        job(run)
    run.stage("sum", lambda: {"x": sum(run[f"walk-{seed}"]["x"] for seed in range(config.walks))})


def claims(config: Config, run: Run) -> list[Claim]:
    return [Claim("the sum", "some", str(run["sum"]["x"].tolist()), "reproduced", "Added up.")]


def figures(config: Config, run: Run) -> list[Figure]:
    return []


EXPERIMENT = Experiment(
    id="walks", title="walks", source="nowhere", question="where to?", claim="somewhere",
    configs={"smoke": Config(), "paper": Config(16)}, minutes={"smoke": 0, "paper": 0},
    run=run, figures=figures, claims=claims, jobs=jobs,
)  # fmt: skip
REFERENCE = f"{__name__}:EXPERIMENT"


def differences(one: Path, other: Path) -> list[str]:
    """What two run folders do not have in common: bits of arrays, lines of metrics, claims, names of stages."""
    wrong = [
        name for name in ("metrics.jsonl", "config.json") if (one / name).read_bytes() != (other / name).read_bytes()
    ]
    records = [json.loads((folder / "record.json").read_text(encoding="utf-8")) for folder in (one, other)]
    wrong += [key for key in ("claims", "figures", "arrays", "size", "config") if records[0][key] != records[1][key]]
    facts = [json.loads((folder / "stages.json").read_text(encoding="utf-8"))["stages"] for folder in (one, other)]
    wrong += ["stages.json"] if list(facts[0]) != list(facts[1]) else []
    files = [{path.relative_to(folder) for path in folder.rglob("*")} - {Path("sweep.json")} for folder in (one, other)]
    wrong += [str(name) for name in files[0] ^ files[1]]
    for name in (name for name in files[0] & files[1] if name.suffix == ".npz"):
        with np.load(one / name) as a, np.load(other / name) as b:
            same = a.files == b.files and all(
                a[key].dtype == b[key].dtype and a[key].tobytes() == b[key].tobytes() for key in a.files
            )
        wrong += [] if same else [str(name)]
    return wrong
