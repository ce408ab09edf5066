"""The demonstration shows what the theory says: the same start, all learn, direct breaks."""

from __future__ import annotations

import math

import pytest
import torch
from typer.testing import CliRunner

from stablessm.cli import app
from stablessm.experiments.demo.experiment import EXPERIMENT, MAPS, Config, start
from stablessm.experiments.frame.stages import Stages
from stablessm.report.figure import Figure


def test_every_map_starts_as_the_same_function():
    config = Config(width=8, length=30)
    layers = [start(config, map) for map in MAPS]
    x = torch.randn(2, 40, 1, dtype=torch.float64)
    for layer in layers[1:]:
        torch.testing.assert_close(layer(x)[0], layers[0](x)[0])


def test_the_size_that_users_get():
    config = EXPERIMENT.config("paper")
    assert (config.width, config.length, config.samples, config.steps, config.seed) == (32, 200, 10, 10, 0)
    assert (config.radii[:2], config.radii[-1], len(config.radii)) == ((0.0, 0.001), 1.024, 12)
    assert config.explodes == 100
    assert (config.training.steps, config.training.batch, config.training.lr) == (1000, 64, 0.01)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """What the command printed, and the folder of its run."""
    out = tmp_path_factory.mktemp("demo")
    result = CliRunner().invoke(app, ["demo", "--smoke", "--out", str(out)])
    assert result.exit_code == 0, result.output
    return result.output, out / "demo" / "smoke"


def test_direct_breaks_where_stable_maps_do_not(demo):
    _, folder = demo
    claims = EXPERIMENT.claims(EXPERIMENT.config("smoke"), Stages(folder))
    assert [claim.verdict for claim in claims[:2]] == ["reproduced", "reproduced"]
    errors = {series.name: series.y for series in Figure.load(folder / "demo.json").panels[1].series}
    assert errors["direct"][-1] > 100 * errors["best"][-1]
    for map in MAPS:
        assert all(
            low <= high or math.isinf(high)
            for low, high in zip(errors[map], errors[f"{map}, upper bound"], strict=True)
        )


def test_the_command_writes_a_report(demo):
    output, folder = demo
    assert "The stability demonstration" in (folder / "report.html").read_text(encoding="utf-8")
    assert "stability radius" in output or "perturbed by" in output
