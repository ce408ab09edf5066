"""Two language models to use: claims that follow the numbers, and what they are made of."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from stablessm.experiments import catalog
from stablessm.experiments.beyond.language import experiment as language
from stablessm.experiments.frame.base import execute
from stablessm.experiments.frame.run import Run

EXPERIMENT = catalog.get("ext-language")


def measured(perplexity, *, windows=1.0, diverged=-1, compressed=2.0):
    """A model with this perplexity a token, ``windows`` times it without the state."""
    counts = [1000, 500, 4000, 0]
    read = {"carried": perplexity, "windows": windows * perplexity}
    return {
        "losses": np.array([[0.0, 9.0], [1.0, 5.0]]), "steps": np.array(7), "diverged": np.array(diverged),
        "parameters": np.array(12_345), "sample": np.array("The city\nis old"), "compressed": np.array(compressed),
        "memory": np.exp(-0.2 * np.arange(60)), "floor": np.array(1e-9),
        **{f"{split}-{how}": np.array([1000 * np.log(value), *counts])
           for split in ("valid", "test") for how, value in read.items()},
    }  # fmt: skip


def claims(folder, pieces, words):
    run, config = Run(folder, {}, progress=False), EXPERIMENT.config("paper")
    for name, cell in (("pieces", pieces), ("words", words)):
        run.stage(name, lambda cell=cell: cell)
    assert len(language.EXPERIMENT.figures(config, run)[0].panels) == 2
    return language.EXPERIMENT.claims(config, run)


def test_claims_follow_the_numbers(tmp_path):
    good = claims(tmp_path / "good", measured(60.0, windows=1.1), measured(90.0))
    assert [claim.verdict for claim in good] == ["holds", "reproduced", "reproduced", "partly"]
    assert f"{np.log2(60) / 4:.3f} bits per byte" in good[0].ours
    assert "A sample: The city is old" in good[0].why
    bad = claims(tmp_path / "bad", measured(600.0, windows=0.9), measured(110.0, windows=0.9))
    assert [claim.verdict for claim in bad] == ["does not hold", "partly", "not reproduced", "not reproduced"]
    assert claims(tmp_path / "worse", measured(60.0), measured(130.0))[1].verdict == "not reproduced"


def test_a_model_that_diverged_wins_nothing(tmp_path):
    lost = claims(tmp_path, measured(2.0, windows=3.0, diverged=4), measured(2.0, windows=3.0, diverged=5))
    assert {claim.verdict for claim in lost} == {"not reproduced", "does not hold"}
    assert [claim.ours for claim in lost] == [f"diverged at step {step}" for step in (4, 5, 4, 5)]


@pytest.mark.parametrize("rate", [0.01, 1e6])
def test_what_is_measured(rate, tmp_path):
    """Also of a training that diverges."""
    small = EXPERIMENT.config("smoke")
    words = dataclasses.replace(small.words, training=dataclasses.replace(small.words.training, lr=rate, warmup=0.0))
    run = Run(tmp_path, {}, progress=False)
    language.EXPERIMENT.jobs(language.Config(small.pieces, words))["words"](run)
    found = language.one(run, "words")
    assert (int(found["diverged"]) >= 0) is (rate > 1)
    if rate < 1:
        assert str(found["sample"]).startswith("the ")
        assert language.scored(found, "test", "carried").tokens == words.task().streams["test"].tokens.size


def test_a_device_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="device: expected"):
        execute(EXPERIMENT, "smoke", tmp_path, changes={"pieces.training.device": "bogus"}, progress=False)
