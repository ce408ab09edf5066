"""An experiment one job of which kills the process that computes it."""

from __future__ import annotations

import os
from dataclasses import replace

import sweep_experiment


def jobs(config):
    def first(run):
        run.stage("threads", lambda: {"openmp": int(os.environ["OMP_NUM_THREADS"])})

    return {"first": first, "second": lambda run: os.kill(os.getpid(), 9)}


EXPERIMENT = replace(sweep_experiment.EXPERIMENT, id="deadly", jobs=jobs)
