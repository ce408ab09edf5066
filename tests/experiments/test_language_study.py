"""The language experiments: rules, training, sharing of stages, and claims that follow the numbers."""

from __future__ import annotations

import copy
import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stablessm import ArgumentError, training
from stablessm.experiments import catalog
from stablessm.experiments.frame.run import Run
from stablessm.experiments.stable_ssm import gradient_ratios, language_study, language_training
from stablessm.experiments.stable_ssm.fig4 import experiment as fig4
from stablessm.experiments.stable_ssm.fig5 import experiment as fig5
from stablessm.experiments.stable_ssm.fig6 import experiment as fig6
from stablessm.experiments.stable_ssm.language_stability import LIMITS, Instability, calmest, final_loss, spikes
from stablessm.experiments.stable_ssm.language_study import SCHEMES, SMOKE, StudyConfig, start
from stablessm.experiments.stable_ssm.language_text import chain
from stablessm.experiments.stable_ssm.language_training import LanguageTraining, _Seen, fit, mean_loss
from stablessm.experiments.stable_ssm.table2 import experiment as table2
from stablessm.experiments.stable_ssm.table3 import experiment as table3
from stablessm.instruments.modes import recurrent_modules
from stablessm.tasks.base import Inputs, Outputs
from stablessm.training.steps import Cadence

CPU, META = torch.device("cpu"), torch.device("meta")
OPTIONS = dataclasses.replace(SMOKE.training, steps=6, scored=100)
TEXT = chain(12, 16, 60)


def model(scheme, seed=0, task=TEXT):
    return start(task, "lm-tiny", scheme, seed, (2.0, 20.0), CPU)


# what counts as a spike


@given(st.lists(st.integers(0, 8), min_size=1, max_size=4, unique=True), st.floats(-5, 5), st.integers(1, 5))
def test_spikes_are_counted_once_wherever_the_losses_lie(places, level, width):
    losses = level + np.linspace(3, 0, 10 * LIMITS.window + 50)
    at = sorted(60 + place * (LIMITS.window + 6) for place in places)
    for place in at:
        losses[place : place + width] += 3 * LIMITS.height
    assert spikes(losses).tolist() == at
    assert spikes(losses, at[0] + 1).tolist() == at[1:]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=150))
def test_a_falling_loss_has_no_spikes_and_a_small_bump_is_none(drops):
    losses = 9 - np.cumsum(drops)
    assert not len(spikes(losses))
    losses[len(losses) // 2] = np.median(losses[: len(losses) // 2]) + 0.99 * LIMITS.height
    assert not len(spikes(losses[: len(losses) // 2 + 1]))


def test_calm_comes_first():
    quiet, upset, lost = Instability(False, 0), Instability(False, 2), Instability(True, 0)
    assert sorted([lost, upset, quiet]) == [quiet, upset, lost]
    assert calmest(quiet, [upset, lost]) == "reproduced"
    assert calmest(quiet, [quiet, lost]) == "partly"
    assert calmest(upset, [quiet, lost]) == "not reproduced"
    assert final_loss({"diverged": np.array(3), "losses": np.ones(3)}) == np.inf


# training


def test_all_maps_start_as_one_function_from_the_same_eigenvalues():
    x = TEXT.batch("test", 2).inputs
    reference = model("exp")
    expected, (_, layer) = reference(x), next(recurrent_modules(reference))
    tau = -1 / layer.eigenvalues().detach().log()
    assert tau.min() == pytest.approx(2.0, rel=1e-3)
    assert tau.max() == pytest.approx(20.0, rel=1e-3)
    for scheme in SCHEMES:
        torch.testing.assert_close(model(scheme)(x), expected, rtol=1e-3, atol=1e-5)
    assert not torch.allclose(model("exp", 1)(x), expected, atol=1e-3)


@pytest.mark.parametrize("clip", [None, 0.1])
def test_a_training_is_that_of_the_loop_that_users_have(clip, tmp_path):
    options, first = dataclasses.replace(OPTIONS, clip=clip), model("softplus")
    own = copy.deepcopy(first)
    found = fit(own, TEXT, options, 0.02, 3)
    config = dataclasses.replace(options.config(0.02, 3), log_every=1, select="last")
    result = training.train(first, TEXT, config, tmp_path, progress=False)
    assert found["losses"] == pytest.approx(result.losses[:, 1], rel=1e-6)
    for a, b in zip(own.parameters(), first.parameters(), strict=True):
        assert torch.equal(a, b)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    ratios = [row["gradient_over_weight"] for row in rows if "gradient_over_weight" in row]
    # the loop looks at clipped gradients, we at those that were computed
    shrunk = np.ones(6) if clip is None else np.minimum(1, clip / (found["norms"] + 1e-6))
    assert (found["largest"] * shrunk[found["looks"]]) == pytest.approx(np.array(ratios)[found["looks"]], rel=1e-4)
    assert mean_loss(own, TEXT, "test", options) == pytest.approx(result.scores["test"]["loss"], rel=1e-5)


def test_an_interrupted_training_resumes_with_the_same_numbers(tmp_path, monkeypatch):
    whole = fit(model("exp"), TEXT, OPTIONS, 0.02, 3)
    monkeypatch.setattr(Run, "cadence", lambda _: Cadence(steps=2))
    plain = _Seen.computed

    def stopping(hook, step):
        if step == 5:
            raise KeyboardInterrupt
        plain(hook, step)

    def attempt():
        run = Run(tmp_path, {}, progress=False)
        return run.stage("one", lambda: fit(model("exp"), TEXT, OPTIONS, 0.02, 3, run=run, stage="one"))

    with monkeypatch.context() as patch:
        patch.setattr(_Seen, "computed", stopping)
        with pytest.raises(KeyboardInterrupt):
            attempt()
    assert (tmp_path / "one.checkpoints").is_dir()
    steps = []
    monkeypatch.setattr(_Seen, "computed", lambda hook, step: (steps.append(step), plain(hook, step)))
    again = attempt()
    assert steps == list(range(4, OPTIONS.steps))
    for name, array in whole.items():
        assert np.array_equal(again[name], array), name


def test_a_longer_plan_keeps_the_rate_up():
    whole, beginning = (LanguageTraining(steps=20, warmup=5, planned=planned) for planned in (None, 200))
    assert whole.config(0.1, 0).warmup == 5 / 20
    assert beginning.config(0.1, 0).warmup == 5 / 200
    assert beginning.config(0.1, 0).recurrent_lr == pytest.approx(0.08)


def test_without_a_gpu_there_is_no_graph():
    graph = dataclasses.replace(OPTIONS, graph=True)  # on the CPU
    plain, other = (fit(model("best-1"), TEXT, options, 0.01, 0) for options in (OPTIONS, graph))
    np.testing.assert_array_equal(plain["losses"], other["losses"])


@pytest.mark.parametrize("again", [False, True])
def test_one_that_diverges_stops_and_says_why(again):
    broken = model("direct")
    broken.body.gradient_checkpointing = again
    next(layer for _, layer in recurrent_modules(broken)).w.data[3] = 1e6
    before = copy.deepcopy(broken.state_dict())
    found = fit(broken, TEXT, OPTIONS, 0.01, 0)
    assert int(found["diverged"]) == 0
    assert not len(found["losses"])
    assert "unstable" in str(found["report"])
    assert "inner" in str(found["report"])
    for name, tensor in broken.state_dict().items():
        assert torch.equal(tensor, before[name])
    scores = language_training.scores(broken, TEXT, OPTIONS, found)
    assert np.isnan(scores["test"])


def test_one_that_diverges_later_has_the_losses_before():
    later = fit(model("direct"), TEXT, dataclasses.replace(OPTIONS, steps=40, warmup=0), 30.0, 0)
    step = int(later["diverged"])
    assert 0 < step == len(later["losses"])
    assert f"diverged at step {step}" in str(later["report"])
    assert later["looks"].max() < step


def test_only_one_that_diverged_may_be_too_bad_to_measure(monkeypatch):
    def refuse(*_, **__):
        raise ArgumentError("model", "sequences that do not mix", "others")

    monkeypatch.setattr(language_study, "memory_function", refuse)
    found = language_study.remembered(model("exp"), TEXT, 2, 8, {"diverged": np.array(3)})
    assert np.isnan(found["memory"]).all()
    assert found["memory"].shape == (8,)
    with pytest.raises(ArgumentError):
        language_study.remembered(model("exp"), TEXT, 2, 8, {"diverged": np.array(-1)})


def test_the_made_text_can_be_learned():
    long = dataclasses.replace(OPTIONS, steps=60)
    found = fit(model("best-1"), TEXT, long, 0.02, 0)
    assert found["losses"][0] == pytest.approx(np.log(12), abs=0.3)
    assert final_loss(found) < 0.75 * found["losses"][0]


def test_the_models_of_the_paper_size_are_as_large_as_they_should_be():
    text = SimpleNamespace(inputs=Inputs("tokens", 8192, 1024), outputs=Outputs("classes", 8192, per_step=True))
    sizes = {
        kind.preset: sum(p.numel() for p in start(text, kind.preset, "exp", 0, (2.0, 1000.0), META).parameters())
        for kind in (StudyConfig, table3.Config)
    }
    assert 25e6 < sizes["lm-small"] < 35e6
    assert 2.9e9 < sizes["lm-3b"] < 3.1e9


# stages


def trained_at(config, run, rate):
    for scheme in config.maps:
        language_study.cell.compute(config, run, scheme, rate)
    return language_study.at(config, run, rate)


def test_experiments_of_one_config_share_their_trainings(tmp_path, monkeypatch):
    config = dataclasses.replace(
        SMOKE, maps=("exp", "direct"), training=dataclasses.replace(OPTIONS, steps=3, warmup=1)
    )

    def run(id, **changes):
        return Run(tmp_path / id / "smoke", dataclasses.asdict(dataclasses.replace(config, **changes)), progress=False)

    first = trained_at(config, run("st-fig6"), 0.01)
    monkeypatch.setattr(language_study, "fit", None)  # nothing is trained from here on
    other = run("st-table2")
    for scheme, found in trained_at(config, other, 0.01).items():
        for name, array in found.items():
            np.testing.assert_array_equal(array, first[scheme][name])
    facts = [
        json.loads((tmp_path / id / "smoke" / "stages.json").read_text(encoding="utf-8"))
        for id in ("st-fig6", "st-table2")
    ]
    assert facts[0] == facts[1]
    assert len(other.facts()["stages"]) == 2
    with pytest.raises(TypeError):
        trained_at(config, run("st-fig4", seed=1), 0.01)


def test_a_killed_study_goes_on_to_the_same_numbers(tmp_path, monkeypatch):
    config = dataclasses.replace(SMOKE, training=dataclasses.replace(OPTIONS, steps=3, warmup=1))
    whole = Run(tmp_path / "a" / "x", {}, progress=False)
    trained_at(config, whole, 0.01)
    calls, original = [], language_study.fit

    def killing(*args, **kwargs):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(language_study, "fit", killing)
    with pytest.raises(KeyboardInterrupt):
        trained_at(config, Run(tmp_path / "b" / "x", {}, progress=False), 0.01)
    again = trained_at(config, Run(tmp_path / "b" / "x", {}, progress=False), 0.01)
    assert len(calls) == len(config.maps) + 1
    for scheme, found in trained_at(config, whole, 0.01).items():
        for name, array in found.items():
            np.testing.assert_array_equal(array, again[scheme][name], err_msg=f"{scheme} {name}")


def test_what_is_no_map_is_refused():
    for kind in (StudyConfig, table3.Config):
        with pytest.raises(ArgumentError, match="maps: expected some of direct"):
            kind(maps=("clip",))
    with pytest.raises(ArgumentError, match="timescales"):
        StudyConfig(timescales=(2.0,))
    with pytest.raises(ArgumentError, match=r"training.warmup: expected from 0 to less than 50, got 100"):
        LanguageTraining(steps=50)


def test_every_training_is_a_job():
    assert len(catalog.get("st-fig6").jobs(StudyConfig())) == 24
    assert len(catalog.get("st-table2").jobs(StudyConfig())) == 6
    assert len(catalog.get("st-table3").jobs(table3.Config())) == 24


# claims


FADING = np.exp(-0.2 * np.arange(60))


def trained(loss, *, spiky=0, diverged=-1, ratio=1.0, largest=0.999, memory=FADING):
    """A cell with these outcomes."""
    steps = 400 if diverged < 0 else diverged
    losses = np.linspace(9, loss, steps)
    losses[-max(1, steps // 8) :] = loss
    for i in range(spiky):
        losses[(i + 2) * (LIMITS.window + 5)] += 2
    score = np.nan if diverged >= 0 else loss
    return {
        "losses": losses, "norms": np.ones(steps), "looks": np.arange(4), "largest": np.full(4, ratio),
        "typical": np.full(4, ratio / 2), "diverged": np.array(diverged), "report": np.array(""), "train": score,
        "test": score, "eigenvalues": np.array([[0.5, largest]]), "memory": memory, "floor": 1e-12,
    }  # fmt: skip


def started(low, high):
    return {"ratio": np.geomspace(low, high, 40), "bound": np.full(40, high), "eigenvalues": np.linspace(0.1, 0.9, 40)}


def invented(tmp_path, cells, starts=()):
    """A run in which this came out, the same at every rate but for those given by ``(map, rate)``."""
    config = StudyConfig(rates=(0.001, 0.002, 0.01), rate=0.01)
    run = Run(tmp_path, {}, progress=False)
    for scheme in config.maps:
        for rate in config.rates:
            found = cells.get((scheme, rate), cells[scheme])
            run.stage(f"training-{scheme}-{rate:g}", lambda found=found: found)
    for scheme, ends in dict(starts).items():
        run.stage(f"start-{scheme}", lambda ends=ends: started(*ends))
    return config, run


AS_PUBLISHED = {
    "direct": trained(4.0, spiky=2, ratio=9.0, largest=1.01),
    "relu": trained(3.9, spiky=1, ratio=4.0),
    "exp": trained(3.1, spiky=1, ratio=3.0),
    "softplus": trained(3.05, spiky=1, ratio=2.0),
    "best-0.5": trained(3.2, ratio=0.5),
    "best-1": trained(3.2, ratio=0.6),
    ("best-0.5", 0.002): trained(3.08, ratio=0.5),
    ("best-0.5", 0.01): trained(3.0, ratio=0.5),
}
OTHERWISE = {
    "direct": trained(3.0, ratio=0.1, largest=0.9),
    "relu": trained(3.1, ratio=0.2),
    "exp": trained(3.2, ratio=0.3),
    "softplus": trained(3.3, ratio=0.4),
    "best-0.5": trained(3.9, spiky=3, ratio=5.0, largest=1.5, memory=np.ones(60)),
    "best-1": trained(3.9, ratio=5.0, largest=1.5),
    ("best-0.5", 0.01): trained(3.9, diverged=200, ratio=5.0),
}
RANGES = {"direct": (1e-3, 10), "relu": (1e-3, 5), "tanh": (0.1, 1)}
RANGES |= dict.fromkeys(("exp", "softplus", "best-0.5", "best-1"), (0.1, 0.5))


def verdicts(claims):
    return [claim.verdict for claim in claims]


def test_figure_4_follows_the_numbers(tmp_path):
    good = invented(tmp_path / "a", AS_PUBLISHED, RANGES)
    assert verdicts(fig4.EXPERIMENT.claims(*good)) == ["reproduced", "reproduced"]
    swapped = RANGES | {"direct": (0.1, 0.2), "relu": (0.1, 0.2)}
    assert verdicts(fig4.EXPERIMENT.claims(*invented(tmp_path / "b", OTHERWISE, swapped))) == ["not reproduced"] * 2


def test_figure_5_follows_the_numbers(tmp_path):
    ordered = {scheme: (0.01, cell["largest"][0]) for scheme, cell in AS_PUBLISHED.items() if isinstance(scheme, str)}
    good = invented(tmp_path / "a", AS_PUBLISHED, ordered)
    assert verdicts(fig5.EXPERIMENT.claims(*good)) == ["reproduced"] * 3
    bad = invented(tmp_path / "b", {**OTHERWISE, "direct": trained(9.0, ratio=0.01, spiky=4)}, ordered)
    assert verdicts(fig5.EXPERIMENT.claims(*bad))[0] == "not reproduced"


def test_figure_6_follows_the_numbers(tmp_path):
    config, run = invented(tmp_path / "a", AS_PUBLISHED)
    assert verdicts(fig6.EXPERIMENT.claims(config, run)) == ["reproduced"] * 7
    found = verdicts(fig6.EXPERIMENT.claims(*invented(tmp_path / "b", OTHERWISE)))
    assert found == ["not reproduced"] * 6 + ["partly"]
    alike = verdicts(fig6.EXPERIMENT.claims(*invented(tmp_path / "c", dict.fromkeys(AS_PUBLISHED, trained(3.0)))))
    assert alike == ["partly", "reproduced", "not reproduced", "partly", "partly", "reproduced", "reproduced"]


def test_table_2_follows_the_numbers(tmp_path):
    cells = {**AS_PUBLISHED, ("best-0.5", 0.01): trained(3.2)}
    assert verdicts(table2.EXPERIMENT.claims(*invented(tmp_path / "a", cells))) == ["reproduced"] * 3
    worse = table2.EXPERIMENT.claims(*invented(tmp_path / "b", OTHERWISE))
    assert verdicts(worse) == ["not reproduced"] * 3
    assert "best-0.5 inf" in worse[0].ours


def test_table_3_follows_the_numbers(tmp_path):
    config, run = table3.Config(), Run(tmp_path, {}, progress=False)
    for warmup, scheme, seed in table3.cells(config):
        lost = warmup == 10 and scheme != "best-0.5" and not (scheme == "softplus" and seed == 1)
        cell = trained(5.0, diverged=40 + seed if lost else -1) | {"parameters": np.array(3_000_000_000)}
        if lost and scheme == "direct":
            cell["report"] = np.array("diverged at step 40: the loss is nan\nforward: inf in 'blocks.0'")
        run.stage(f"warmup-{warmup}-{scheme}-{seed}", lambda cell=cell: cell)
    claims = table3.EXPERIMENT.claims(config, run)
    assert verdicts(claims[:4]) == ["reproduced", "reproduced", "partly", "reproduced"]
    assert verdicts(claims[4:]) == ["reproduced", *3 * ["not reproduced"]]
    assert "100 steps at the rate 0.01 after 10 warm-up steps" in claims[0].statement
    assert "the first 100 of 1000 warm-up steps to the rate 0.01" in claims[4].statement
    assert "seed 2 diverged at step 42" in claims[3].ours
    assert "forward: inf in 'blocks.0'" in claims[3].why
    drawn = table3.EXPERIMENT.figures(config, run)
    assert [figure.name for figure in drawn] == ["losses-warmup-10", "losses-warmup-1000"]
    assert [len(panel.series) for panel in drawn[0].panels] == [12, 12, 12]
    stuck = {"diverged": np.array(-1), "losses": np.full(100, 9.0)}
    assert not table3.converged(config, stuck)


@pytest.mark.parametrize("changes", [{"warmups": (3, 3)}, {"warmups": (10, 200_000)}, {"training": OPTIONS}])
def test_table_3_says_its_warm_ups_once(changes):
    with pytest.raises(ArgumentError, match="warmup"):
        dataclasses.replace(table3.Config(), **changes)


@pytest.mark.parametrize("maps", [("best-1",), ("direct",), ("exp", "softplus"), ("direct", "best-0.5")])
def test_some_of_the_maps_are_a_study_too(maps, tmp_path):
    config, run = invented(tmp_path, AS_PUBLISHED, RANGES)
    config = dataclasses.replace(config, maps=maps)
    for part in (fig4, fig5, fig6, table2):
        part.EXPERIMENT.claims(config, run)
        assert all(figure.panels for figure in part.EXPERIMENT.figures(config, run))
    assert bool(fig6.EXPERIMENT.claims(config, run)) is (maps != ("direct",))


@settings(max_examples=30)
@given(st.lists(st.sampled_from([0.1, 0.2, 0.3]), min_size=2, max_size=8))
def test_ranks_share_places(values):
    array = np.array(values)
    ranks = gradient_ratios.ranks(array[:, None])
    assert ranks.sum() == pytest.approx(len(array) * (len(array) - 1) / 2)
    assert gradient_ratios.ranks(10 * array[:, None] + 3).tolist() == ranks.tolist()
    for a, b in zip(array, ranks, strict=True):
        assert (ranks[array == a] == b).all()


def test_a_text_of_your_own_can_be_studied(tmp_path, monkeypatch):
    monkeypatch.setenv("STABLESSM_CACHE", str(tmp_path / "cache"))
    mine = tmp_path / "mine.txt"
    mine.write_text(
        "\n".join(f"{n} bottles of beer on the wall, {n} bottles of beer" for n in range(300)), encoding="utf-8"
    )
    options = dataclasses.replace(OPTIONS, steps=4, warmup=1)
    config = dataclasses.replace(SMOKE, text=str(mine), vocabulary=300, maps=("best-1",), training=options)
    (found,) = trained_at(config, Run(tmp_path / "a" / "x", {}, progress=False), 0.01).values()
    assert found["losses"][0] == pytest.approx(np.log(config.task().inputs.size), abs=0.3)
    assert np.isfinite(found["test"])
    assert language_study.memory(found) is not None
