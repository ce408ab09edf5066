"""The memory of random teachers that students approximate stably."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.frame.training import Training
from stablessm.experiments.iat.fig3.models import DT, Config, perturbed, remembered, trained
from stablessm.instruments import MemoryCurve, PerturbationCurve, PerturbationFamily
from stablessm.report.figure import Figure, Panel, Series

SHOWN = 6
"""Number of memory functions in a panel."""


def run(config: Config, run: Run) -> None:
    """Train the students, perturb them, and measure the memory of the teachers."""
    trained(config, run)
    run.stage("perturbation", lambda: perturbed(config, run))
    run.stage("memory", lambda: remembered(config))


@dataclass(frozen=True)
class Judged:
    """The result for one teacher."""

    index: int
    family: PerturbationFamily
    error: float
    """Error of the widest student, relative to the teacher's norm."""
    approximated: bool
    stable: bool
    memory: MemoryCurve

    @property
    def decays(self) -> bool:
        """Return whether the teacher's memory is exponential."""
        return self.memory.decay().kind == "exponential"

    @property
    def survives(self) -> bool:
        """Return whether the teacher passes the filter."""
        return self.approximated and self.stable


def judged(config: Config, stages: Stages) -> Iterator[Judged]:
    """Yield every teacher, from the arrays."""
    errors, norms, memory = stages["perturbation"]["errors"], stages["perturbation"]["norms"], stages["memory"]
    for i in range(config.teachers):
        curves = {m: curve(config, errors[i, k]) for k, m in enumerate(config.widths)}
        family, error = PerturbationFamily(curves), float(errors[i, -1, 0] / norms[i])
        held = MemoryCurve(memory["time"], memory["value"][i], floor=float(memory["floor"][i]))
        yield Judged(i, family, error, error < config.tolerance, family.verdict().stable is True, held)


def curve(config: Config, errors: np.ndarray) -> PerturbationCurve:
    """Return the measured memory as a curve."""
    return PerturbationCurve(
        radius=np.array(config.radii), lower=errors, upper=None, theorem=None, norm="sobolev", weight_norm="tensor_max",
        search="random", parameters=("M", "U", "bias", "C"), samples=config.draws, steps=0, horizon=config.horizon,
        dt=DT, seed=0, evaluations=1 + (len(config.radii) - 1) * config.draws,
    )  # fmt: skip


def figures(config: Config, stages: Stages) -> list[Figure]:
    """Return the errors of the students of one accepted teacher, and memories of accepted and rejected teachers."""
    teachers = sorted(judged(config, stages), key=lambda one: (not one.survives, one.decays, one.error))
    errors = [
        Series(f"m = {m}", found.radius[1:].tolist(), found.lower[1:].tolist(), "both")
        for m, found in teachers[0].family.curves.items()
    ]
    panels = [Panel(f"students of teacher {teachers[0].index}", "β", "E_m(β), Sobolev norm", errors, "log", "log")]
    for title, chosen in (("pass the filter", True), ("do not", False)):
        group = [one for one in teachers if one.survives is chosen][:SHOWN]
        lines = [line for one in group for line in drawn(one)]
        if lines:
            panels.append(Panel(f"teachers that {title}", "t", "M(t)", lines, y_scale="log"))
    caption = (
        "Left: perturbation error of the students of one teacher. Then memory functions of teachers that students "
        f"approximate stably and of others (at most {SHOWN}, not exponential ones first). Dashed: fitted decay."
    )
    return [Figure("filter", caption, panels)]


def drawn(teacher: Judged) -> list[Series]:
    """Return a memory function, and the law that was fitted to it."""
    memory, fit = teacher.memory, teacher.memory.decay()
    time, name = memory.time[::8], f"teacher {teacher.index}"
    law = np.where(fit(time) > memory.value[memory.value > 0].min(initial=np.inf), fit(time), np.nan)
    return [
        Series(name, time.tolist(), memory.value[::8].tolist(), "solid", name),
        Series(f"{fit.kind}", time.tolist(), law.tolist(), "dashed", name),
    ]


def claims(config: Config, stages: Stages) -> list[Claim]:
    """Check that the accepted teachers have exponential memory."""
    teachers = list(judged(config, stages))
    alive, dead = ([one for one in teachers if one.survives is chosen] for chosen in (True, False))
    kinds, others = (Counter(one.memory.decay().kind for one in group) for group in (alive, dead))
    rates = [one.memory.decay().rate or np.nan for one in alive if one.decays]
    close = [one for one in teachers if one.approximated]
    count = f"{len(close)} are approximated, {sum(one.stable for one in teachers)} stably, {len(alive)} both"
    return [
        Claim(
            "teachers that can be approximated stably have exponential memory",
            "figure 3: the only teachers that remain have exponentially decaying memory",
            f"of {len(teachers)} teachers {len(alive)} remain: {listed(kinds)}",
            rules.most_seen(kinds),
            f"{count}; their decay rates are {min(rates, default=np.nan):.2g} to "
            f"{max(rates, default=np.nan):.2g}. Memory of the {len(dead)} other teachers: {listed(others)}. Memory of "
            f"all approximated teachers, stably or not: {listed(Counter(one.memory.decay().kind for one in close))}.",
        )
    ]


def listed(kinds: Counter[Any]) -> str:
    """Return the number of teachers of each kind of decay, in words."""
    return ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())) or "none"


EXPERIMENT = Experiment(
    id="ia-fig3",
    title="Teachers that can be approximated stably",
    source="IAT, figure 3",
    question="Which random teachers can students of growing width approximate stably?",
    claim="Only teachers with exponentially decaying memory.",
    configs={
        "smoke": Config(
            teachers=6,
            teacher_width=32,
            widths=(2, 4, 8),
            length=30,
            training=Training(samples=64, batch=16, epochs=5, lr=0.005, device="cpu"),
            horizon=40,
            radii=(0.0, 1e-3, 1e-2, 0.1),
            draws=2,
            memory=256,
        ),
        "paper": Config(),
    },
    minutes={"smoke": 0.1, "paper": 240.0},
    run=run,
    figures=figures,
    claims=claims,
)
