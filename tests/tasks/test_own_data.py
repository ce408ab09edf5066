"""Arrays and CSV files of a user: what they become, and errors that say where."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stablessm import ArgumentError, tasks
from stablessm.tasks import csv_file
from stablessm.tasks.stored import shuffled_split

RNG = np.random.default_rng(0)
X, CLASSES = RNG.standard_normal((30, 8, 2)), RNG.integers(0, 3, 30)
LENGTHS = RNG.integers(1, 9, 30)


@pytest.mark.parametrize(
    ("inputs", "targets", "kinds"),
    [
        (X, CLASSES, ("values", 2, "classes", 3, False)),
        (X[..., 0], CLASSES.astype(np.uint8), ("values", 1, "classes", 3, False)),
        (X.astype(np.float32), X[:, 0], ("values", 2, "values", 2, False)),
        (X, X[:, 0, 0], ("values", 2, "values", 1, False)),
        (X, X[..., :1], ("values", 2, "values", 1, True)),
        (CLASSES[:, None] * np.arange(8), np.arange(8) + CLASSES[:, None], ("tokens", 15, "classes", 10, True)),
        (torch.from_numpy(X), torch.from_numpy(CLASSES), ("values", 2, "classes", 3, False)),
    ],
)
def test_kinds_follow_from_types_and_shapes(inputs, targets, kinds):
    task = tasks.get("arrays", inputs=inputs, targets=targets)
    assert (task.inputs.kind, task.inputs.size, task.outputs.kind, task.outputs.size, task.outputs.per_step) == kinds
    assert task.metric == ("accuracy" if kinds[2] == "classes" else "mse")
    assert sum(task.sizes.values()) == 30


def test_inputs_are_standardized_by_what_is_real_in_training():
    padded = np.where(np.arange(8) < LENGTHS[:, None], X[..., 0], np.nan)[..., None] * 3 + 5
    task = tasks.get("arrays", inputs=padded, targets=CLASSES, lengths=LENGTHS)
    batch = task.batch("train", task.sizes["train"])
    real = torch.arange(batch.inputs.shape[1]) < batch.lengths[:, None]
    values = batch.inputs[real]
    assert values.mean().abs() < 1e-6
    assert values.std(correction=0).item() == pytest.approx(1, abs=1e-6)
    assert batch.inputs.isfinite().all()
    raw = tasks.get("arrays", inputs=padded, targets=CLASSES, lengths=LENGTHS, standardize=False)
    np.testing.assert_allclose(raw.batch("test", 3).inputs[0, 0], 3 * values_of(raw, "test")[0] + 5, rtol=1e-6)


def values_of(task, split):
    rows = shuffled_split(30, 0.1, 0.1, 0)[split]
    return X[rows, 0, 0]


def test_arrays_come_from_files(tmp_path):
    expected = tasks.get("arrays", inputs=X, targets=CLASSES, lengths=LENGTHS)
    np.savez(tmp_path / "all.npz", inputs=X, targets=CLASSES, lengths=LENGTHS)
    parts = {"inputs": X, "targets": CLASSES, "lengths": LENGTHS}
    for name, array in parts.items():
        np.save(tmp_path / f"{name}.npy", array)
    together = tasks.get("arrays", inputs=str(tmp_path / "all.npz"))
    apart = tasks.get("arrays", **{name: str(tmp_path / f"{name}.npy") for name in parts})
    assert together.describe() == apart.describe() == expected.describe()
    assert torch.equal(together.batch("train", 9).inputs, expected.batch("train", 9).inputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": X}, "targets: expected an array"),
        ({"targets": CLASSES}, "inputs: expected .* for task 'arrays': array, .npy file"),
        ({"inputs": X[0, 0], "targets": CLASSES}, r"inputs: expected values \(n, T, d\) or"),
        ({"inputs": X > 0, "targets": CLASSES}, "inputs: expected values .* got bool"),
        (
            {"inputs": X, "targets": CLASSES[1:]},
            r"targets: expected \(30,\) or \(30, 8\) classes, .* got int64 \(29,\)",
        ),
        ({"inputs": X, "targets": CLASSES[:, None]}, r"targets: expected .* got int64 \(30, 1\)"),
        ({"inputs": X, "targets": CLASSES - 1}, "targets: expected classes from 0 up, got -1"),
        ({"inputs": X, "targets": CLASSES > 0}, "targets: expected classes as whole numbers, or values"),
        ({"inputs": CLASSES[:, None] - 1, "targets": CLASSES}, "inputs: expected tokens from 0 up, got -1"),
        ({"inputs": X[:, :0], "targets": CLASSES}, "inputs: expected examples with at least one step"),
        (
            {"inputs": X, "targets": CLASSES, "lengths": LENGTHS + 8},
            r"lengths: expected \(30,\) whole numbers from 1 to 8",
        ),
        ({"inputs": X, "targets": CLASSES, "lengths": LENGTHS[1:]}, "lengths: expected"),
        (
            {"inputs": X, "targets": CLASSES, "valid": 0.5, "test": 0.5},
            "valid, test: expected fractions",
        ),
        ({"inputs": X[:1], "targets": CLASSES[:1]}, "data: expected enough examples"),
        (
            {"inputs": "missing.npy", "targets": CLASSES},
            r"inputs: expected an array in a whole \.npy file, got missing",
        ),
    ],
)
def test_arrays_that_do_not_fit(options, message):
    with pytest.raises(ArgumentError, match=message):
        tasks.get("arrays", **options)


@pytest.mark.parametrize("what", ["inputs", "targets"])
def test_a_number_that_is_none_is_found(what):
    arrays = {"inputs": X.copy(), "targets": X[:, 0].copy()}
    arrays[what][(17, 3, 1)[: arrays[what].ndim] if what == "inputs" else (17, 1)] = np.nan
    with pytest.raises(ArgumentError, match=f"{what}: expected finite numbers, got nan in row 17"):
        tasks.get("arrays", **arrays)


def test_damaged_array_files_are_named(tmp_path):
    np.savez(tmp_path / "all.npz", inputs=X)
    with pytest.raises(ArgumentError, match=r"all\.npz: expected arrays inputs and targets in a whole \.npz"):
        tasks.get("arrays", inputs=str(tmp_path / "all.npz"))
    with pytest.raises(ArgumentError, match=r"targets, lengths: expected no value, since .*all\.npz"):
        tasks.get("arrays", inputs=str(tmp_path / "all.npz"), targets=CLASSES)
    np.save(tmp_path / "x.npy", X)
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(whole[:-9])
    with pytest.raises(ArgumentError, match=r"inputs: expected an array in a whole \.npy file, got .*x\.npy"):
        tasks.get("arrays", inputs=str(tmp_path / "x.npy"), targets=CLASSES)
    with pytest.raises(ArgumentError, match=r"nothing\.npz: expected arrays inputs and targets .* got no such file"):
        tasks.get("arrays", inputs=str(tmp_path / "nothing.npz"))


@given(count=st.integers(2, 200), valid=st.floats(0, 0.45), test=st.floats(0, 0.45), seed=st.integers(0, 99))
def test_a_split_has_every_example_once(count, valid, test, seed):
    try:
        found = shuffled_split(count, valid, test, seed)
    except ArgumentError:
        assert round(valid * count) + max(round(test * count), 1) >= count
        return
    assert torch.cat(list(found.values())).sort().values.tolist() == list(range(count))
    assert abs(len(found["valid"]) - valid * count) <= 0.5
    assert len(found["test"]) >= 1
    assert len(found["train"]) >= 1


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


REFUSE = {"missing": "refuse"}
ROWS = [f"2024-01-{i:02d};{i};{-2 * i};7" for i in range(1, 51)]


def test_a_series_is_forecast_from_its_past(tmp_path):
    file = write(tmp_path / "s.csv", "day;a;b;same", *ROWS)
    task = tasks.get("series", file=file, target="b", window=5, horizon=2, valid=0.2, test=0.2)
    assert task.columns == ("a", "b", "same")
    a = np.arange(1, 51)
    mean, deviation = a[:30].mean(), a[:30].std()
    scaled = (a - mean) / deviation
    batch = task.batch("test", 3)
    for i in range(3):
        np.testing.assert_allclose(batch.inputs[i, :, 0], scaled[40 + i - 5 : 40 + i], rtol=1e-5)
        np.testing.assert_allclose(batch.targets[i], -scaled[40 + i : 42 + i], rtol=1e-5)
    assert not batch.inputs[..., 2].any(), "a column that never changes is 0"
    assert task.sizes == {"train": 24, "valid": 9, "test": 9}
    assert task.describe()["scale"]["a"] == {"mean": mean, "deviation": pytest.approx(deviation)}
    only = tasks.get("series", file=file, columns="a", target="b", window=5)
    assert (only.columns, only.outputs.names) == (("a", "b"), ("b+1",))
    (tmp_path / "s.csv.gz").write_bytes(gzip.compress(("\ufeff" + Path(file).read_text(encoding="utf-8")).encode()))
    packed = tasks.get("series", file=file + ".gz", target="b", window=5, horizon=2, valid=0.2, test=0.2)
    assert packed.describe() == task.describe(), "wherever the file lies"


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (["a,b", "1,2", "3,x", "1,2"], REFUSE, r"s\.csv, line 3, column b: expected a finite number, got 'x'"),
        (["a,b", "1,2", "", "3,"], REFUSE, r"s\.csv, line 4, column b: expected a finite number, got ''"),
        (["a,b", "1,2", "nan,2"], REFUSE, r"s\.csv, line 3, column a: expected a finite number, got 'nan'"),
        (["a,b", '1,"2\n"', "inf,2"], REFUSE, r"s\.csv, line 4, column a: expected a finite number, got 'inf'"),
        (["a,b", "1,2", "3"], {}, r"s\.csv, line 3: expected 2 cells, as many as column names, got 1"),
        (["a,b", *["1,"] * 50], {"columns": "a,b"}, r"columns: expected numbers, or 2 to 30 different words"),
        (["a,b", *["1,"] * 50], {"target": "b"}, r"s\.csv, column b: .* at least one number, got empty cells"),
        (["a,b"], {}, r"s\.csv: expected a CSV file with a line of column names and at least one row"),
        (["a,b", '1,"2'], {}, r"s\.csv, line 2: expected a CSV file"),
        (["a,b", "x,y"], {}, r"s\.csv: expected a column of numbers, got a \('x' in line 2\), b \('y' in line 2\)"),
        (["a,b", *["1,2"] * 50], {"target": "c"}, r"target: expected one of the columns of .*s\.csv \(a, b\), got 'c'"),
        (["a,b", *["1,2"] * 50], {"columns": "c", "target": "a"}, r"columns: expected one of the columns of .*got 'c'"),
        (["a,b", *["1,2"] * 50], {"window": 60}, "window, horizon: expected a window and a horizon that fit"),
        (["a,b", *["1,2"] * 50], {"window": 0}, "window: expected a whole number"),
    ],
)
def test_a_series_that_cannot_be_read(lines, options, message, tmp_path):
    with pytest.raises(ArgumentError, match=message):
        tasks.get("series", file=write(tmp_path / "s.csv", *lines), **options)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ArgumentError, match=r"got no such file: .*no\.csv$"):
        tasks.get("series", file=str(tmp_path / "no.csv"))


@settings(max_examples=20)
@given(lengths=st.lists(st.integers(1, 5), min_size=8, max_size=12), order=st.randoms(use_true_random=False))
def test_sequences_are_put_together_from_their_rows(lengths, order, tmp_path_factory):
    rows = [(name, step) for name, length in enumerate(lengths) for step in range(length)]
    place = dict.fromkeys(range(len(lengths)), 0)
    order.shuffle(rows)
    lines = []
    for name, _ in rows:  # rows of a sequence may stand apart, in their order
        lines.append(f"{place[name]},s{name},{100 * name + place[name]},{'ab'[name % 2]}")
        place[name] += 1
    file = write(tmp_path_factory.mktemp("s") / "s.csv", "step,who,x,kind", *lines)
    task = tasks.get("sequences", file=file, sequence="who", label="kind", columns="x")
    assert task.outputs.names == ("a", "b")
    mean, deviation = (np.array(task.describe()["scale"][part]) for part in ("mean", "deviation"))
    seen = []
    for split in tasks.SPLITS:
        if not task.sizes[split]:
            continue
        batch = task.batch(split, task.sizes[split])
        for x, length, label in zip(batch.inputs, batch.lengths, batch.targets, strict=True):
            values = (x[:length, 0].double().numpy() * deviation + mean).round().astype(int)
            name = values[0] // 100
            assert values.tolist() == [100 * name + step for step in range(lengths[name])]
            assert label == name % 2
            seen.append(name)
    assert sorted(seen) == list(range(len(lengths)))


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (
            ["id,x,y", "1,2,a", "1,2,b"],
            {},
            r"s\.csv, line 3, column y: expected 'a', as in line 2 of sequence '1', got 'b'",
        ),
        (["id,x,y", "1,2,a", "2,2,"], {}, r"s\.csv, line 3, column y: expected a label, got an empty cell"),
        (["id,x,y", *[f"{i},2,a" for i in range(9)]], {}, r"label: expected a column of .*s\.csv with two labels"),
        (["id,x,y", "1,2,a", "2,,b"], REFUSE, r"s\.csv, line 3, column x: expected a finite number, got ''"),
        (["id,x,y", "1,2,1", "2,3,b"], {"kind": "values"}, r"s\.csv, line 3, column y: expected a finite number"),
        (["id,x,y", "1,2,a", ",3,b"], {}, r"s\.csv, line 3, column id: expected the name of a sequence, got an empty"),
        (["id,x,y", "1,2,a"], {"label": "z"}, r"label: expected one of the columns of .* \(id, x, y\), got 'z'"),
        (["id,x,y", "1,2,a"], {"sequence": "z"}, r"sequence: expected one of the columns of .* \(id, x, y\), got 'z'"),
        (["id,x,y", "1,v,a"], {}, r"s\.csv: expected a column of numbers other than id and y, got x \('v' in line 2\)"),
    ],
)
def test_sequences_that_cannot_be_read(lines, options, message, tmp_path):
    given = {"sequence": "id", "label": "y", **options}
    with pytest.raises(ArgumentError, match=message):
        tasks.get("sequences", file=write(tmp_path / "s.csv", *lines), **given)


def test_a_label_without_training_examples_is_noted(tmp_path):
    lines = ["sequence,x,label", *[f"{i},1,{'rare' if i == 7 else 'ab'[i % 2]}" for i in range(40)]]
    file = write(tmp_path / "s.csv", *lines)
    found = [tasks.get("sequences", file=file, split_seed=seed) for seed in range(20)]
    noted = ["no training example has the label rare" in " ".join(task.notes) for task in found]
    learned = [2 in task.batch("train", task.sizes["train"]).targets for task in found]
    assert noted == [not any_rare for any_rare in learned]
    assert any(noted)


def test_labels_that_are_numbers_are_in_their_order(tmp_path):
    lines = ["sequence,x,label", *[f"{i},1,{(10, 9, 'x')[i % 3]}" for i in range(12)]]
    assert tasks.get("sequences", file=write(tmp_path / "s.csv", *lines)).outputs.names == ("9", "10", "x")


def test_tabs_and_quotes(tmp_path):
    table = csv_file.read(Path(write(tmp_path / "t.csv", '"a, b"\tc', '"1"\t2')))
    assert table.header == ("a, b", "c")
    assert table.numbers(["a, b", "c"], "columns").tolist() == [[1.0, 2.0]]
