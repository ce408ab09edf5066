from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import sample_files
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from stablessm import ArgumentError
from stablessm.cli import app
from stablessm.cli.samples_source import read_samples
from stablessm.constructions import ExponentialSum
from stablessm.report.figure import Figure

WRITTEN = {"record.json", "sum.safetensors", "sum.csv", "fit.json", "fit.png", "fit.svg"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def fit(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["fit", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def written(name: str) -> Path:
    """The one default folder of that name."""
    (found,) = Path("runs/fit").glob(f"{name}-????????/sum.safetensors")
    return found


def test_a_formula(tmp_path):
    text = fit("1/(1+t)**1.1", "--horizon", 300, "--tol", "1e-4", "--out", "run")
    assert "largest error" in text
    assert {path.name for path in Path("run").iterdir()} == WRITTEN
    es = ExponentialSum.load("run/sum.safetensors")
    times = np.arange(301.0)
    error = np.abs(es(times) - (1 + times) ** -1.1).max()
    assert error <= 1e-4
    record = json.loads(Path("run/record.json").read_text(encoding="utf-8"))
    assert record["results"]["largest error"] == pytest.approx(error, rel=1e-6)
    assert record["results"]["order (states)"] == es.order
    assert record["config"]["tol"] == 1e-4
    assert record["wall_time_s"] > 0
    shown, errors = Figure.load("run/fit.json").panels
    assert {series.name for series in shown.series} == {"kernel", "sum"}
    assert max(errors.series[0].y) <= 1e-4
    assert f"{es.rates.real.min():.6g}" in text


def test_options_reach_the_fit():
    fit("exp(-t/50)*cos(t/3)", "--horizon", 300, "--order", 2, "--dt", 0.5)
    es = ExponentialSum.load(written("exp-t-50-cos-t-3"))
    assert es.order == 2
    assert es.dt == 0.5
    assert complex(es.rates[0]).real == pytest.approx(-1 / 50)
    assert abs(complex(es.rates[0]).imag) == pytest.approx(1 / 3)
    fit("exp(-t/20) - 0.5*exp(-t/5)", "--horizon", 100, "--tol", 0.2, "--positive", "--out", "positive")
    es = ExponentialSum.load("positive/sum.safetensors")
    assert not np.iscomplexobj(es.rates)
    assert (es.weights >= 0).all()
    fit("t**-0.4", "--interval", 1, 100, "--relative", "--tol", 1e-2, "--out", "interval")
    es, times = ExponentialSum.load("interval/sum.safetensors"), np.geomspace(1, 100, 999)
    assert np.abs(es(times) * times**0.4 - 1).max() < 1.1e-2
    assert es.time == "continuous"
    assert Figure.load("interval/fit.json").panels[1].y_label == "relative error"


def test_samples_by_column():
    times = np.arange(80) * 0.25
    values = np.exp(-times) + np.exp(-times / 5)
    np.savetxt("one.csv", values)
    np.savetxt("two.csv", np.c_[times, values], delimiter=",", header="t,value", comments="")
    np.savetxt("three.csv", np.c_[times, values, np.exp(-times)], delimiter=";")
    kept = np.r_[0:20, 20:80:3]
    np.savetxt("uneven.csv", np.c_[times, values][kept])
    fit("--from", "one.csv", "--dt", 0.25, "--tol", 1e-6)
    for name in ("two", "three", "uneven"):
        fit("--from", f"{name}.csv", "--tol", 1e-6)
    for name in ("one", "two", "three", "uneven"):
        es = ExponentialSum.load(written(f"{name}.csv"))
        found = es(times) if name != "three" else es(times)[:, 0, 0]
        assert np.abs(found - values).max() <= 2e-6, name
    assert ExponentialSum.load(written("three.csv")).shape == (2, 1)
    fit("--from", "two.csv", "--horizon", 40, "--order", 2, "--out", "cut")
    assert ExponentialSum.load("cut/sum.safetensors").horizon == 40


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("1/t", "--horizon", 50), 2, "inf at t = 0"),
        (("1/t", "--horizon", 50), 2, "--interval 1 50"),
        (("log(5-t)", "--horizon", 50), 2, "at t = 5"),
        (("1/(t-0.5)", "--horizon", 50, "--continuous"), 2, "t = 0.5"),
        (("exp(t/10)", "--horizon", 50), 1, "cannot fit"),
        (("9**9**9**9", "--horizon", 50), 2, "a finite number"),
        (("__import__('os')", "--horizon", 50), 2, "a function that is known"),
        (("1/(1+t)",), 2, "--horizon: expected a number of steps"),
        (("1/(1+t)", "--horizon", 50, "--tol", 0.1, "--order", 2), 2, "not both"),
        (("1/(1+t)", "--horizon", 50, "--tol", -1), 2, "tol: expected"),
        (("1/(1+t)", "--horizon", 50, "--dt", 0), 2, "--dt: expected"),
        (("1/t", "--interval", 0, 1), 2, "--interval: expected"),
        (("1/t", "--interval", 1, 9, "--horizon", 9), 2, "--horizon: expected no --horizon"),
        ((), 2, "neither"),
        (("t", "--from", "absent.csv"), 2, "both"),
        (("--from", "absent.csv"), 2, "absent.csv"),
        (("--from", "."), 2, "cannot fit {folder}: --from"),
        (("--from", "nan.csv"), 2, "two or more lines of numbers"),
        (("--from", "ragged.csv"), 2, "2 columns in each line"),
        (("--from", "words.csv"), 2, "'b' in words.csv:3"),
        (("--from", "twice.csv"), 2, "2 different values at t = 1"),
        (("--from", "noisy.csv", "--norm", "l2", "--noise", 1), 2, "--noise: expected no --noise"),
        (("--from", "two.csv", "--dt", 1), 2, "--dt: expected no --dt"),
        (("--from", "two.csv", "--horizon", 9), 2, "10 or more lines"),
        (("--from", "short.csv"), 2, "two or more lines"),
        (("--from", "binary.csv"), 2, "a text file of numbers"),
    ],
)
def test_what_cannot_be_fitted_gets_a_reason_and_leaves_nothing(arguments, code, reason):
    files = {
        "nan.csv": "1\nnan\nnan\n",
        "noisy.csv": "t,value,sigma\n0,1,2\n1,2,3\n2,3,4\n",
        "ragged.csv": "0,1\n1,0.5,3\n",
        "words.csv": "a\n1\nb\n2\n",
        "twice.csv": "0 1\n1 0.5\n1 0.2\n",
        "two.csv": "0 1\n1 0.5\n2 0.2\n",
        "short.csv": "1\n",
    }
    for name, content in files.items():
        Path(name).write_text(content, encoding="utf-8")
    Path("binary.csv").write_bytes(b"\x81\x00\xff")
    before = set(Path().rglob("*"))
    text = fit(*arguments, code=code)
    assert reason.format(folder=Path.cwd().name) in text
    assert "Traceback" not in text
    assert set(Path().rglob("*")) == before


def test_noise_gets_the_best_that_can_be_done():
    noise = 1e-3 * np.random.default_rng(0).standard_normal(200)
    np.savetxt("noisy.csv", np.exp(-np.arange(200) / 30) + noise)
    text = fit("--from", "noisy.csv", "--tol", 1e-6, code=1)
    assert "best fit that was found" in text
    assert "nothing was written" in text
    assert not Path("runs").exists()


@pytest.mark.parametrize("folder", ["taken", "taken/below"])
def test_a_folder_that_is_a_file(folder):
    Path("taken").write_text("", encoding="utf-8")
    text = fit("exp(-t)", "--horizon", 9, "--out", folder, code=2)
    assert "--out: expected a folder" in text
    assert "Traceback" not in text


def test_what_cannot_be_written_says_so(monkeypatch):
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(ExponentialSum, "save", full)
    assert "cannot write to here: no space left" in fit("exp(-t)", "--horizon", 9, "--out", "here", code=1)


def test_no_fit_takes_the_folder_of_another():
    requests = [
        ("t*exp(-t/3)", "--horizon", 50),
        ("t+exp(-t/3)", "--horizon", 50, "--order", 2),
        ("t*exp(-t/3)", "--horizon", 60),
        ("t*exp(-t/3)", "--horizon", 50, "--tol", 1e-2),
    ]
    for request in (*requests, requests[0]):
        fit(*request)
    assert len(list(Path("runs/fit").iterdir())) == len(requests)


def test_help_has_examples():
    text = fit("--help")
    assert "Examples:" in text
    assert 'stablessm fit "1/(1+t)**1.1" --horizon 1000 --tol 1e-6' in text


cells = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(
    table=st.integers(1, 4).flatmap(
        lambda w: st.lists(st.lists(cells, min_size=w, max_size=w), min_size=2, max_size=9)
    ),
    separator=st.sampled_from([",", ";", "\t", " ", " , "]),
    header=st.booleans(),
    blank=st.booleans(),
)
def test_files_are_read_as_written(table, separator, header, blank, tmp_path_factory):
    path = tmp_path_factory.mktemp("samples") / "samples.csv"
    array = np.array(table)
    if array.shape[1] > 1:
        array[:, 0] = np.arange(len(array)) ** 2.0 + 1
    lines = [separator.join(map(repr, row)) for row in array.tolist()]
    if header:
        lines.insert(0, separator.join(["name"] * array.shape[1]))
    if blank:
        lines = [line for pair in zip(lines, ["", "# 3"] * len(lines), strict=False) for line in pair]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = read_samples(path)
    np.testing.assert_array_equal(found.values.reshape(len(array), -1), array[:, min(1, array.shape[1] - 1) :])
    if array.shape[1] > 1:
        np.testing.assert_array_equal(found.times, array[:, 0])
        array[:, 0] = 0.1 * np.arange(len(array))
        path.write_text("\n".join(separator.join(map(repr, row)) for row in array.tolist()), encoding="utf-8")
        found = read_samples(path)
        assert found.complete
        assert found.dt == pytest.approx(0.1)


@given(
    values=st.lists(cells, min_size=2, max_size=9).filter(any),
    separator=st.sampled_from([";", "\t", " ; "]),
)
def test_decimal_commas(values, separator, tmp_path_factory):
    path = tmp_path_factory.mktemp("samples") / "samples.csv"
    rows = [f"{i}{separator}{value!r}".replace(".", ",") for i, value in enumerate(values)]
    path.write_text("\n".join(rows), encoding="utf-8")
    np.testing.assert_array_equal(read_samples(path).values, values)


@given(values=st.lists(st.tuples(cells, cells), min_size=2, max_size=9), separator=st.sampled_from([",", ";", " "]))
def test_complex_samples(values, separator, tmp_path_factory):
    path = tmp_path_factory.mktemp("samples") / "samples.csv"
    expected = np.array([complex(*value) for value in values])
    rows = [f"{i}{separator}{value!s}" for i, value in enumerate(expected.tolist())]
    path.write_text("\n".join(rows), encoding="utf-8")
    np.testing.assert_array_equal(read_samples(path).values, expected)
    path.write_text("\n".join(f"{i + 1}j{separator}1" for i in range(3)), encoding="utf-8")
    with pytest.raises(ArgumentError, match="real times"):
        read_samples(path)


def check_file(seed, path):
    """Compare what is read from a random file with what was written."""
    drawn = sample_files.draw(seed)
    path.write_bytes(drawn.content)
    found = read_samples(path)
    np.testing.assert_allclose(found.times, drawn.times, rtol=1e-12)
    np.testing.assert_allclose(found.values, drawn.values, rtol=1e-11, atol=1e-11)
    for name in ("noise", "weights"):
        ours, theirs = getattr(found, name), getattr(drawn, name)
        assert (ours is None) == (theirs is None), name
        assert ours is None or ours == pytest.approx(theirs)
    assert found.dt == (None if drawn.dt is None else pytest.approx(drawn.dt, rel=1e-6))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_files_as_people_have_them(seed, tmp_path_factory):
    check_file(seed, tmp_path_factory.getbasetemp() / "drawn.csv")


@pytest.mark.slow
def test_three_thousand_files(tmp_path):
    for seed in range(3000):
        check_file(seed, tmp_path / "drawn.csv")


def test_a_missing_first_value_is_no_header(tmp_path):
    path = tmp_path / "singular.csv"
    path.write_text("value\nnan\n0.5\n0.25\n", encoding="utf-8")
    found = read_samples(path, dt=0.5)
    assert found.times.tolist() == [0.5, 1.0]
    assert not found.complete
    assert found.notes == ("lines without a finite value, left out: 1 (first: line 2)",)


def test_a_horizon_counts_steps_of_a_file_in_any_order(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("4 1\n0 5\n3 2\n1 4\n", encoding="utf-8")
    assert read_samples(path, rows=4).times.tolist() == [0, 1, 3]
    with pytest.raises(ArgumentError, match=r"6 or more lines of numbers, got 5"):
        read_samples(path, rows=6)


def test_rounded_times_with_gaps_are_fitted_on_their_grid():
    times = np.delete(np.arange(60) / 3, [7, 8, 30])
    rows = [f"{t:.8f} {np.exp(-t / 4) * np.cos(t):.17g}" for t in times]
    Path("rounded.txt").write_text("\n".join(rows), encoding="utf-8")
    fit("--from", "rounded.txt", "--tol", 1e-6, "--out", "rounded")
    es = ExponentialSum.load("rounded/sum.safetensors")
    assert es.time == "discrete"
    assert es.order == 2
    assert es.dt == pytest.approx(1 / 3)


def test_repeated_times_are_averaged_by_their_precision(tmp_path):
    path = tmp_path / "twice.csv"
    path.write_text("t value noise\n2 5 1\n0 1 1\n1 2 1\n1 6 0.5\n", encoding="utf-8")
    found = read_samples(path, average=True)
    np.testing.assert_allclose(found.times, [0, 1, 2])
    np.testing.assert_allclose(found.values, [1, (2 + 4 * 6) / 5, 5])
    np.testing.assert_allclose(found.noise, [1, 5**-0.5, 1])
    assert found.notes == ("the lines were sorted by time", "times with several values, which were averaged: 1")
    path.write_text("0 1\n1 2\n1 4\n2 5", encoding="utf-8")
    found = read_samples(path, average=True)
    np.testing.assert_allclose(found.values, [1, 3, 5])
    np.testing.assert_allclose(found.weights, [1, 2, 1])


def test_standard_deviations_in_a_file_weigh_the_fit(tmp_path):
    times = np.arange(60.0)
    noise = np.where(times < 30, 1e-3, 10.0)
    values = np.exp(-times / 8) + noise * np.random.default_rng(0).standard_normal(60)
    rows = [f"{t};{v};{s}" for t, v, s in zip(times, values, noise, strict=True)]
    Path("sigma.csv").write_text("t;value;sigma\n" + "\n".join(rows).replace(".", ","), encoding="utf-8")
    fit("--from", "sigma.csv", "--norm", "l2", "--order", 1, "--out", "weighed")
    es = ExponentialSum.load("weighed/sum.safetensors")
    assert float(es.rates[0]) == pytest.approx(-1 / 8, rel=0.01)
    assert "is not used" in fit("--from", "sigma.csv", "--order", 1, "--out", "unweighed")


def test_a_file_that_begins_too_early(tmp_path):
    path = tmp_path / "early.csv"
    path.write_text("-1 1\n0 2\n1 3\n", encoding="utf-8")
    with pytest.raises(ArgumentError, match="from 0 up"):
        read_samples(path)


@pytest.mark.parametrize("options", [(), ("--tol", "1e-3"), ("--horizon", "10", "--order", "2")])
def test_a_fit_without_a_kernel_names_what_is_missing(options):
    told = CliRunner().invoke(app, ["fit", *options])
    assert told.exit_code == 2
    assert "cannot fit: EXPRESSION: expected a formula, or samples with --from, got neither" in " ".join(
        told.output.split()
    )
