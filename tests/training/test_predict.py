"""Forecasts and probabilities of a trained model, against the same numbers computed by hand."""

from __future__ import annotations

import csv
import json
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from stablessm import ArgumentError, NumericalError, models, tasks
from stablessm.cli import app
from stablessm.tasks.new_data import SeriesReader
from stablessm.training import TrainedModel, TrainingConfig, forecast_errors, settings_of
from stablessm.training.folder import claim, keep
from stablessm.training.settings import signature

RNG = np.random.default_rng(3)
SERIES = np.stack([5 + 3 * RNG.standard_normal(120), 900 + 70 * RNG.standard_normal(120)], 1)
WINDOW, HORIZON = 7, 3


def save(folder: Path, task: tasks.Task, name: str, options: dict[str, str]) -> torch.nn.Module:
    """Write the run folder of a training run with random weights."""
    torch.manual_seed(5)
    model = models.for_task(task.inputs, task.outputs, "tiny").eval()
    config = TrainingConfig(steps=1, batch_size=4).binding()
    settings = {"config": config, "task": task.describe(), "model": signature(model)}
    claim(folder, {**settings, "origin": {"task": name, "options": options}}, {}, fresh=True)
    keep(model, folder)
    return model


def write(path: Path, rows: np.ndarray) -> str:
    lines = [f"day {i},{a!r},{b!r}" for i, (a, b) in enumerate(rows.tolist())]
    path.write_text("\n".join(["day,load,wind", *lines]), encoding="utf-8")
    return str(path)


@pytest.fixture
def run(tmp_path, request):
    target = getattr(request, "param", "")
    options = {"window": str(WINDOW), "horizon": str(HORIZON), "target": target, "valid": "0.2"}
    options["file"] = write(tmp_path / "load.csv", SERIES)
    task = tasks.get("series", **tasks.read_options("series", options))
    return tmp_path / "run", task, save(tmp_path / "run", task, "series", options)


def by_hand(model, before: np.ndarray, horizon: int, order: list[int]) -> np.ndarray:
    """Forecast the columns ``order`` a block at a time, each block fed back in."""
    train = SERIES[: round(0.6 * len(SERIES))]
    mean, deviation = train.mean(0), train.std(0)
    rows, found = list((before - mean) / deviation), []
    while len(found) < horizon:
        x = torch.tensor(np.array(rows[-WINDOW:]), dtype=torch.float32)[None]
        block = model(x).detach().double().numpy().reshape(HORIZON, len(order))
        found += list(block)
        if len(order) == 2:
            rows += list(block[:, np.argsort(order)])
    return np.array(found[:horizon]) * deviation[order] + mean[order]


@pytest.mark.parametrize(
    ("run", "order", "horizon"),
    [("", [0, 1], 2), ("wind,load", [1, 0], 8), ("", [0, 1], None), ("wind", [1], None)],
    indirect=["run"],
)
def test_a_forecast_is_in_the_units_of_the_data(run, order, horizon):
    folder, task, model = run
    later = 2 * SERIES[20:50] + 1
    found = TrainedModel(folder, device="cpu").predict(later, horizon=horizon, level=0.7)
    steps = horizon or HORIZON
    names = tuple(("load", "wind")[i] for i in order)
    assert found.columns == names
    np.testing.assert_allclose(found.values, by_hand(model, later, steps, order), rtol=1e-4)
    np.testing.assert_array_equal(found.past, later[-WINDOW:, order])
    valid = range(72, 96 - steps + 1)  # where a forecast of the 24 rows after the 72 of training may begin
    errors = np.array(
        [SERIES[i : i + steps, order] - by_hand(model, SERIES[i - WINDOW : i], steps, order) for i in valid]
    )
    np.testing.assert_allclose(forecast_errors(model, task, "valid", horizon=horizon), errors, rtol=1e-3, atol=1e-3)
    for ends, share in ((found.lower, 0.15), (found.upper, 0.85)):
        np.testing.assert_allclose(ends - found.values, np.quantile(errors, share, axis=0), rtol=1e-3, atol=2e-3)
    assert f"0.15 and 0.85 quantiles of the model's errors at the same step over {len(valid)} windows" in found.note


def test_forecasts_outside_their_intervals_are_mentioned(run):
    folder, _, _ = run
    found = TrainedModel(folder, device="cpu").predict(level=0.01)
    outside = int(((found.values < found.lower) | (found.values > found.upper)).any(-1).sum())
    assert outside
    assert f" {outside} of {HORIZON} forecasts are outside their own interval" in found.note
    assert "outside" not in TrainedModel(folder, device="cpu").predict(level=0.999).note


def test_baselines_and_remarks(run):
    _, task, _ = run
    scaled = (SERIES - SERIES[:72].mean(0)) / SERIES[:72].std(0)
    off = [scaled[i : i + HORIZON] - scaled[i - 1] for i in range(96, 120 - HORIZON + 1)]
    assert task.naive == pytest.approx(np.square(off).mean(), rel=1e-4)
    between = (task.chance + task.naive) / 2
    assert task.chance < task.naive  # of white noise
    assert task.remarks(task.chance / 2) == []
    (remark,) = task.remarks(between)
    assert remark == f"remark: mse {between:.4g} is no better than the best constant prediction ({task.chance:.4g})"
    assert "repeating the last row" in task.remarks(float("nan"))[1]
    labels = tasks.get("arrays", inputs=torch.randn(40, 8, 1), targets=torch.arange(40) % 2)
    assert labels.remarks(0.9) == []
    assert len(labels.remarks(labels.chance)) == 1


def test_a_forecast_continues_the_training_data_and_any_file(run, tmp_path):
    folder, _, model = run
    trained = TrainedModel(folder, device="cpu")
    expected = by_hand(model, SERIES, HORIZON, [0, 1])
    np.testing.assert_allclose(trained.predict().values, expected, rtol=1e-4)
    Path(tmp_path / "load.csv").unlink()
    alone = TrainedModel(folder, device="cpu")  # on a machine without the training data
    np.save(tmp_path / "x.npy", SERIES)
    for data in (write(tmp_path / "x.csv", SERIES), tmp_path / "x.csv", tmp_path / "x.npy", torch.tensor(SERIES)):
        found = alone.predict(data)
        np.testing.assert_allclose(found.values, expected, rtol=1e-4)
        assert (found.lower, found.upper) == (None, None)
        assert found.note.startswith("No intervals: the training data cannot be read (file: expected the name of")
        assert str(tmp_path / "load.csv") in found.note
        assert "training.json" not in found.note
        assert found.header() == ["step", "load", "wind"]
    with pytest.raises(ArgumentError, match="data: expected a CSV file or an array, since the training data cannot"):
        alone.predict()


@pytest.mark.parametrize(
    ("run", "data", "how", "message"),
    [
        (
            "wind",
            SERIES,
            {"horizon": 4},
            "horizon: expected at most 3, as in training, since .* not forecast load",
        ),
        ("", SERIES[:6], {}, "data: expected at least 7 rows, the window of the model, got 6"),
        ("", SERIES[:, :1], {}, r"data: expected \(rows, 2\): load, wind, got \(120, 1\)"),
        ("", SERIES * np.inf, {}, "data: expected finite numbers, got inf"),
        ("", SERIES, {"level": 1.0}, "level: expected a number between 0 and 1"),
        ("", SERIES, {"horizon": 0}, "horizon: expected a whole number, at least 1"),
    ],
    indirect=["run"],
)
def test_what_cannot_be_forecast(run, data, how, message):
    with pytest.raises(ArgumentError, match=message):
        TrainedModel(run[0], device="cpu").predict(data, **how)


def test_settings_of_the_training_reach_every_forecast(run, monkeypatch):
    folder, _, _ = run
    settings = settings_of(folder)
    claim(folder, {**settings, "config": {**settings["config"], "autocast": True, "batch_size": 5}}, {}, fresh=False)
    seen = []

    def recorded(model, batch, *, autocast):
        seen.append((len(batch), autocast))
        return model(batch.inputs)

    monkeypatch.setattr("stablessm.training.forecast.apply", recorded)
    TrainedModel(folder, device="cpu").predict(SERIES[:WINDOW])
    assert seen == [(1, True), *[(5, True)] * 4, (2, True)]  # one forecast, and 22 windows of the validation split


def test_a_horizon_beyond_the_validation_rows_has_no_interval(run):
    found = TrainedModel(run[0], device="cpu").predict(horizon=25)
    assert (len(found.values), found.lower) == (25, None)
    assert found.note == "No intervals: no window of the validation split has 25 rows after it."
    assert TrainedModel(run[0], device="cpu").predict(horizon=24).lower is not None


def test_gaps_of_new_data_are_filled_as_in_training(run, tmp_path):
    folder, _, model = run
    lines = Path(write(tmp_path / "x.csv", SERIES)).read_text(encoding="utf-8").splitlines()
    load, wind = SERIES[-2].tolist()
    lines[-2] = f"day,NA,{wind!r}"
    (tmp_path / "x.csv").write_text("\n".join(lines), encoding="utf-8")
    filled = SERIES.copy()
    filled[-2, 0] = SERIES[-3, 0]
    assert load != SERIES[-3, 0]
    found = TrainedModel(folder, device="cpu").predict(tmp_path / "x.csv")
    np.testing.assert_allclose(found.values, by_hand(model, filled, HORIZON, [0, 1]), rtol=1e-4)
    assert "x.csv: 1 of 120 cells of load are missing or not numbers; the previous value is repeated" in found.note


@pytest.fixture
def walks(tmp_path):
    rows = [(f"w{i}", RNG.normal(i % 3, 4), RNG.normal(), "abc"[i % 3]) for i in range(30) for _ in range(3 + i % 4)]
    lines = [",".join(map(str, row)) for row in rows]
    (tmp_path / "walks.csv").write_text("\n".join(["walk,x,y,kind", *lines]), encoding="utf-8")
    options = {"file": str(tmp_path / "walks.csv"), "sequence": "walk", "label": "kind"}
    task = tasks.get("sequences", **options)
    return tmp_path / "run", task, save(tmp_path / "run", task, "sequences", options)


def test_probabilities_of_sequences(walks, tmp_path):
    folder, task, model = walks
    fresh = {"n1": RNG.normal(size=(4, 2)), "n2": RNG.normal(size=(9, 2))}
    lines = [f"{y!r},{name},{x!r}" for name, values in fresh.items() for x, y in values.tolist()]
    (tmp_path / "new.csv").write_text("\n".join(["y,walk,x", *lines]), encoding="utf-8")
    found = TrainedModel(folder, device="cpu").predict(tmp_path / "new.csv")
    scale = task.describe()["scale"]
    for i, values in enumerate(fresh.values()):
        x = torch.tensor((values - scale["mean"]) / scale["deviation"], dtype=torch.float32)[None]
        expected = model(x).detach().double().softmax(-1)[0]
        np.testing.assert_allclose(found.values[i], expected, rtol=1e-4)
        assert found.classes[i] == "abc"[int(expected.argmax())]
    assert found.header() == ["sequence", "class", "a", "b", "c"]
    assert [row[:2] for row in found.rows()] == [["n1", found.classes[0]], ["n2", found.classes[1]]]
    told = json.loads(CliRunner().invoke(app, ["predict", str(folder), str(tmp_path / "new.csv"), "--json"]).stdout)
    assert (told["sequences"], told["columns"], told["classes"]) == (["n1", "n2"], ["a", "b", "c"], [*found.classes])
    np.testing.assert_allclose(told["probabilities"], found.values, rtol=1e-6)
    tested = TrainedModel(folder, device="cpu").predict()
    batch = task.batch("test", task.sizes["test"])
    expected = model(batch.inputs, lengths=batch.lengths).detach().softmax(-1)
    np.testing.assert_allclose(tested.values, expected, rtol=1e-4)
    again = TrainedModel(folder, device="cpu").predict(tmp_path / "walks.csv")  # every sequence under its own name
    known = dict(zip(again.sequences, again.values, strict=True))
    np.testing.assert_allclose([known[name] for name in tested.sequences], expected, rtol=1e-4)
    with pytest.raises(ArgumentError, match="horizon: expected a model that forecasts a series"):
        TrainedModel(folder, device="cpu").predict(horizon=2)


@given(mean=st.floats(-1e6, 1e6), deviation=st.floats(1e-4, 1e6), seed=st.integers(0, 10**9))
@settings(max_examples=10)
def test_values_of_sequences_are_predicted_in_the_units_of_the_data(mean, deviation, seed, tmp_path_factory):
    rng, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("v")
    x = rng.normal(size=60)
    prices = mean + max(deviation, 1e-6 * abs(mean)) * x
    rows = [f"w{i},{float(x[i])!r},{float(prices[i])!r}" for i in range(60) for _ in range(2 + i % 3)]
    (folder / "walks.csv").write_text("\n".join(["walk,x,price", *rows]), encoding="utf-8")
    given = {"file": str(folder / "walks.csv"), "sequence": "walk", "label": "price", "kind": "values", "columns": "x"}
    task = tasks.get("sequences", **given)
    model = save(folder / "run", task, "sequences", given)
    found = TrainedModel(folder / "run", device="cpu").predict(folder / "walks.csv")
    errors = found.values[:, 0] - prices
    tested = errors[[int(name[1:]) for name in task.test_names]]
    told = json.loads(CliRunner().invoke(app, ["eval", str(folder / "run"), "--json", "--device", "cpu"]).stdout)
    assert told["units"]["price"]["rmse"] == pytest.approx(np.sqrt(np.square(tested).mean()), rel=1e-3)
    assert told["mse"] == pytest.approx(np.square(tested / task.target_scale["deviation"]).mean(), rel=1e-3)
    assert 0.1 < told["chance"] < 10
    batch = task.batch("train", task.sizes["train"])
    assert abs(batch.targets.mean()) < 1e-3
    assert batch.targets.std(correction=0).item() == pytest.approx(1, rel=1e-3)
    # Another file is standardized as in training; a run from before has no scale of its labels.
    (folder / "other.csv").write_text("\n".join(["walk,x,price", *rows[:90]]), encoding="utf-8")
    other = tasks.get("sequences", **{**given, "file": str(folder / "other.csv")})
    scored = other.as_trained(task.describe()).batch("test", 3).targets.double() * task.target_scale["deviation"]
    expected = [prices[int(name[1:])] for name in other.test_names[:3]]
    np.testing.assert_allclose(scored[:, 0] + task.target_scale["mean"], expected, rtol=1e-5)
    before = {key: value for key, value in task.describe().items() if key != "target_scale"}
    np.testing.assert_allclose(other.as_trained(before).batch("test", 3).targets[:, 0], expected, rtol=1e-5)
    stored = settings_of(folder / "run")
    claim(folder / "run", {**stored, "task": before}, {}, fresh=True)
    keep(model, folder / "run")
    raw = TrainedModel(folder / "run", device="cpu").predict().values[:, 0]
    old = json.loads(CliRunner().invoke(app, ["eval", str(folder / "run"), "--json", "--device", "cpu"]).stdout)
    expected = np.square(raw - [prices[int(name[1:])] for name in task.test_names]).mean()
    assert old["mse"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("lengths", [None, np.array([2, 5, 3])])
def test_values_of_arrays(lengths, tmp_path):
    inputs, targets = 4 + 3 * RNG.standard_normal((20, 5, 2)), RNG.standard_normal((20, 2))
    task = tasks.get("arrays", inputs=inputs, targets=targets, lengths=np.full(20, 5))
    model = save(tmp_path / "run", task, "arrays", {})
    fresh = RNG.standard_normal((3, 5, 2)).astype(np.float32)
    given = {} if lengths is None else {"lengths": lengths}
    np.savez(tmp_path / "new.npz", inputs=fresh, **given)
    found = TrainedModel(tmp_path / "run", device="cpu").predict(tmp_path / "new.npz")
    scale = task.describe()["scale"]
    tested = TrainedModel(tmp_path / "run", task=task, device="cpu").predict()
    rows = [int(name) for name in tested.sequences]
    np.testing.assert_allclose(
        tested.values,
        model(torch.tensor((inputs[rows] - scale["mean"]) / scale["deviation"]).float()).detach(),
        rtol=1e-3,
        atol=1e-5,
    )
    for i, row in enumerate(found.values):
        x = torch.tensor((fresh[i, : None if lengths is None else lengths[i]] - scale["mean"]) / scale["deviation"])
        np.testing.assert_allclose(row, model(x.float()[None]).detach()[0], rtol=1e-3, atol=1e-5)
    assert found.classes is None
    assert found.header() == ["sequence", "0", "1"]
    assert found.plain()["values"] == found.values.tolist()
    assert found.plain()["classes"] is None
    np.save(tmp_path / "new.npy", fresh)
    whole = TrainedModel(tmp_path / "run", device="cpu").predict(tmp_path / "new.npy")
    np.testing.assert_allclose(whole.values[1], found.values[1], rtol=1e-4)  # the second has all five steps
    with pytest.raises(ArgumentError, match="data: expected 2 channels, as in training, got 3"):
        TrainedModel(tmp_path / "run", device="cpu").predict(RNG.standard_normal((3, 5, 3)))
    with pytest.raises(ArgumentError, match=r"data: expected an \.npy or \.npz file"):
        TrainedModel(tmp_path / "run", device="cpu").predict("new.csv")


def test_the_task_may_be_given(run):
    folder, task, _ = run
    settings = settings_of(folder)
    claim(folder, {**settings, "origin": {}}, {}, fresh=False)
    assert TrainedModel(folder, device="cpu").predict(SERIES).lower is None
    assert TrainedModel(folder, task=task, device="cpu").predict().lower is not None


@pytest.mark.usefixtures("real_pictures")
def test_the_command_writes_a_table_and_a_plot(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = TrainedModel(run[0], device="cpu").predict(horizon=2, level=0.5)
    arguments = ["predict", str(run[0]), "--horizon", "2", "--level", "0.5", "--device", "cpu"]
    done = CliRunner().invoke(app, [*arguments, "--out", "found.csv"])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [expected.note, "written: found.csv, found.png, found.svg"]
    with Path("found.csv").open(encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["step", "load", "load lower", "load upper", "wind", "wind lower", "wind upper"]
    parts = np.stack([expected.values, expected.lower, expected.upper], -1).reshape(2, 6)
    np.testing.assert_allclose(np.array(rows, dtype=float), np.concatenate([[[1], [2]], parts], 1))
    assert all(Path(f"found.{suffix}").stat().st_size > 1000 for suffix in ("png", "svg"))
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    np.testing.assert_allclose(told["upper"], expected.upper)
    assert (told["columns"], told["note"]) == (["load", "wind"], expected.note)


def test_eval_scores_in_the_units_of_the_data(run):
    folder, task, model = run
    told = json.loads(CliRunner().invoke(app, ["eval", str(folder), "--json", "--device", "cpu"]).stdout)
    errors = forecast_errors(model, task, "test")
    for i, name in enumerate(("load", "wind")):
        assert told["units"][name]["rmse"] == pytest.approx(np.sqrt((errors[..., i] ** 2).mean()), rel=1e-5)
        assert told["units"][name]["mae"] == pytest.approx(np.abs(errors[..., i]).mean(), rel=1e-5)
    lines = CliRunner().invoke(app, ["eval", str(folder), "--device", "cpu"]).stdout.splitlines()
    (load,) = (line for line in lines if line.startswith("load: "))
    assert f"load: rmse {told['units']['load']['rmse']:.6g}, mae {told['units']['load']['mae']:.6g}" in load
    assert [line for line in lines if line.startswith("remark: ")] == told["remarks"]


def series_run(folder: Path, times: list[datetime], **options: str) -> Path:
    """Write the folder of a training run on rows at some times, with words in the column sky; return it."""
    folder.mkdir()
    given = {"file": str(series_file(folder / "trained.csv", times)), "window": "5", "target": "load", **options}
    task = tasks.get("series", **tasks.read_options("series", given))
    save(folder, task, "series", given)
    return folder


def series_file(path: Path, times: list[datetime], words: str = "ab") -> Path:
    rng = np.random.default_rng(len(times))
    rows = [f"{time},{rng.normal()!r},{words[i % len(words)]}" for i, time in enumerate(times)]
    path.write_text("\n".join(["when,load,sky", *rows]), encoding="utf-8")
    return path


def times_of(rng: np.random.Generator, step: timedelta, even: bool) -> list[datetime]:
    steps = np.ones(60, dtype=int) if even else rng.choice([1, 1, 1, 1, 1, 1, 2, 3], 60)  # the median is 1
    return [datetime(2024, 1, 31) + int(i) * step for i in steps.cumsum()]


@given(seed=st.integers(0, 10**9))
@settings(max_examples=20)
def test_time_steps_of_new_data_are_those_of_the_training_or_noted(seed, tmp_path_factory):
    """Whatever the steps of new data: they have the unit of the training data, or a note says that they differ."""
    rng, path = np.random.default_rng(seed), tmp_path_factory.mktemp("t")
    unit, other = (timedelta(hours=int(hours)) for hours in rng.choice([1, 3, 24], 2))
    trained_even, even = (bool(rng.random() < 0.5) for _ in range(2))
    run = series_run(path / "run", times_of(rng, unit, trained_even))
    times = times_of(rng, other, even)
    reader = SeriesReader.of(settings_of(run)["task"])
    rows, notes = reader.rows(series_file(path / "new.csv", times))
    task = tasks.get("series", file=str(path / "new.csv"), window=5, target="load")
    scored = task.as_trained(settings_of(run)["task"])
    assert scored.columns == reader.columns
    np.testing.assert_array_equal(scored.unscaled, rows)
    if trained_even:
        assert "dt" not in reader.columns
        told = any("does not read the time between rows" in note for note in notes)
        assert told == (not even or unit != other)
        assert told == any("does not read the time between rows" in note for note in scored.notes)
    else:
        steps = [(b - a) / unit for a, b in pairwise(times)]
        np.testing.assert_allclose(rows[1:, reader.columns.index("dt")], steps)


def test_words_that_the_training_did_not_have_are_noted(tmp_path):
    times = times_of(np.random.default_rng(0), timedelta(hours=1), True)
    trained = TrainedModel(series_run(tmp_path / "run", times, columns="load,sky"), device="cpu")
    assert "counts as none" not in trained.predict(series_file(tmp_path / "old.csv", times, "ba")).note
    note = trained.predict(series_file(tmp_path / "new.csv", times, "abc")).note
    assert "new.csv: 20 cells of sky have a word missing from the training data, such as 'c'; it counts as none" in note


@given(factor=st.sampled_from([1, 1, 1000, 1e-3]), shift=st.sampled_from([0, 0, 273.15]), seed=st.integers(0, 10**9))
@settings(max_examples=20)
def test_new_data_in_other_units_are_noted(factor, shift, seed):
    rng = np.random.default_rng(seed)
    scale = {"load": {"mean": 20.0, "deviation": 2.0}, "wind": {"mean": 0.0, "deviation": 1.0}}
    reader = SeriesReader.of({"task": "series", "options": {"window": 40, "horizon": 1}, "scale": scale})
    load = (20 + 2 * rng.normal(size=90)) * factor + shift
    load[:50] *= rng.choice([1, 100])  # rows before the window are not used
    notes = reader.rows(np.stack([load, rng.normal(size=90)], 1))[1]
    far = abs(np.median(load[50:]) - 20) > 20
    assert far == (factor == 1000 or shift > 0)
    assert len(notes) == far
    assert all(note.startswith("the median of load is") and "20 ± 2; check its unit" in note for note in notes)


def test_sequences_in_other_units_are_noted(walks, tmp_path):
    for x in (1, 1000):
        rows = [f"{'pq'[i // 6]},{x},1" for i in range(12)]
        (tmp_path / "new.csv").write_text("\n".join(["walk,x,y", *rows]), encoding="utf-8")
        note = TrainedModel(walks[0], device="cpu").predict(tmp_path / "new.csv").note
        assert ("the median of x is 1000, and in training" in note) == (x == 1000)


def test_columns_that_new_data_lack_are_named(run, tmp_path):
    (tmp_path / "new.csv").write_text("\n".join(["day,load", *(f"{i},{i % 7}" for i in range(30))]), encoding="utf-8")
    message = r"data: expected the columns of the training data \(load, wind\), got .*new\.csv without wind$"
    with pytest.raises(ArgumentError, match=message):
        TrainedModel(run[0], device="cpu").predict(tmp_path / "new.csv")
    times = times_of(np.random.default_rng(0), timedelta(hours=1), False)
    uneven = series_run(tmp_path / "uneven", times)
    with pytest.raises(ArgumentError, match=r"without dt \(dt requires dates in every row"):
        TrainedModel(uneven, device="cpu").predict(tmp_path / "new.csv")


def test_gaps_of_new_sequences_are_noted(walks, tmp_path):
    rows = [f"{'pq'[i // 6]},{'' if i == 3 else i},1" for i in range(12)]
    (tmp_path / "new.csv").write_text("\n".join(["walk,x,y", *rows]), encoding="utf-8")
    found = TrainedModel(walks[0], device="cpu").predict(tmp_path / "new.csv")
    assert "new.csv: 1 of 12 cells of x are missing or not numbers; the previous value is repeated" in found.note
    (tmp_path / "new.csv").write_text("\n".join(["x,y", *(f"{i},1" for i in range(12))]), encoding="utf-8")
    with pytest.raises(ArgumentError, match=r"data: expected the columns of the training data .* without walk$"):
        TrainedModel(walks[0], device="cpu").predict(tmp_path / "new.csv")


@pytest.mark.parametrize("made", ["run", "walks"])
@pytest.mark.filterwarnings("ignore:.*NaN or infinite values")
def test_predictions_that_are_not_finite_are_an_error(made, request):
    folder, _, model = request.getfixturevalue(made)
    with torch.no_grad():
        model.readout.bias.fill_(torch.inf)
    keep(model, folder)
    message = "the forecast is not finite" if made == "run" else "the output for sequence w\\d+ is not finite"
    with pytest.raises(NumericalError, match=rf"{message} .*lower learning rate"):
        TrainedModel(folder, device="cpu").predict()
    done = CliRunner().invoke(app, ["predict", str(folder)])
    assert (done.exit_code, type(done.exception)) == (2, SystemExit)


def test_a_replica_has_to_be_chosen(run):
    folder, _, model = run
    for i in range(2):
        keep(model, folder / f"replica-{i}")
    (folder / "model").rename(folder / "gone")
    for command in (["predict"], ["eval"], ["export"]):
        done = CliRunner().invoke(app, [*command, str(folder), *(["x.onnx"] if command == ["export"] else [])])
        assert done.exit_code == 2, command
        assert "choose replica-0 … replica-1" in " ".join(done.output.split()), (command, done.output)
