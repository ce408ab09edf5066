"""What the experiments of LRU-UA are made of: data, states, errors, and what they compare with."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stablessm import ArgumentError
from stablessm.experiments.beyond.ett import experiment as ett
from stablessm.experiments.beyond.ett.experiment import hourly
from stablessm.experiments.frame.run import Run
from stablessm.experiments.lru_ua import digits, reconstructions, sparse_reconstructions
from stablessm.experiments.lru_ua.fig9 import experiment as volterra
from stablessm.reconstruction import Decoder, fourier, haar
from stablessm.tasks import sources
from stablessm.tasks.forecasting import CHANNELS, FILE

SMALL = reconstructions.DigitsConfig(data="synthetic", images=20, side=6, sizes=(20, 36), draws=2, shown=2)
PLACEMENTS = st.one_of(st.floats(0, 0.99), st.sampled_from(["roots", "optimized"]))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run", {}, progress=False)


@settings(max_examples=20, deadline=None)
@given(placement=PLACEMENTS, size=st.integers(1, 20), length=st.integers(1, 30), seed=st.integers(0, 99))
def test_last_states_are_those_of_the_recurrence(
    placement: reconstructions.Placement, size: int, length: int, seed: int
) -> None:
    lam = reconstructions.eigenvalues(placement, size, length, seed)
    u = torch.randn(3, length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    state = torch.zeros(3, size, dtype=torch.complex128)
    for u_k in u.unbind(1):
        state = lam * state + u_k[:, None]
    torch.testing.assert_close(reconstructions.last_states(u, lam), state)


@pytest.mark.parametrize("solver", list(reconstructions.SOLVERS))
@pytest.mark.parametrize("placement", [0.0, 0.95, "roots"])
def test_errors_over_the_factor_are_errors_over_the_images(
    placement: reconstructions.Placement, solver: str, run: Run
) -> None:
    lam = reconstructions.eigenvalues(placement, 20, SMALL.length)
    u = reconstructions.pixels(SMALL)
    decoder = Decoder(lam, SMALL.length, real=solver == "real")
    off = (reconstructions.read_back(u, decoder, lam) - u).square().mean(0)
    reconstructions.measured.compute(reconstructions.DigitsConfig(**{**vars(SMALL), "draws": 1}), run, placement, 20)
    kept = reconstructions.measured(run, placement, 20)
    index = reconstructions.INDEX[solver]
    np.testing.assert_allclose(kept["by position"][index], off.numpy(), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(kept["mse"][0, index], off.mean().item(), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(kept["shown"][index], reconstructions.read_back(u[:2], decoder, lam), atol=1e-6)


def test_roots_of_unity_give_everything_or_means_of_what_is_n_apart(run: Run) -> None:
    for placement, size in (("roots", SMALL.length), ("roots", 18), ("optimized", 18)):
        reconstructions.measured.compute(SMALL, run, placement, size)
    whole = reconstructions.measured(run, "roots", SMALL.length)
    assert reconstructions.error(whole, "complex") < 1e-28
    assert abs(reconstructions.condition(whole, "complex") - 1) < 1e-10
    half = reconstructions.measured(run, "roots", 18)
    u = reconstructions.pixels(SMALL)[:2].unflatten(1, (2, 18))
    np.testing.assert_allclose(half["shown"][0], u.mean(1, keepdim=True).expand(2, 2, 18).flatten(1), atol=1e-6)
    placed = reconstructions.measured(run, "optimized", 18)
    assert reconstructions.error(placed, "real") < 1e-28


@settings(max_examples=20, deadline=None)
@given(covered=st.integers(0, 36))
def test_reach_counts_what_comes_back_from_the_end(covered: int) -> None:
    there = (reconstructions.factor(SMALL).square().sum(0) / SMALL.images).numpy()
    missed = there.copy()
    missed[len(missed) - covered :] = 0
    found, stages = {"by position": np.stack([missed, there])}, {"images": {"energy": there}}
    reached = reconstructions.reach(SMALL, stages, found, "complex")
    if there[len(there) - covered :].sum() > 0:
        assert reached >= covered
    else:  # pixels without energy tell nothing
        assert reached == 0
    assert missed[::-1][:reached].sum() <= 0.1 * there[::-1][:reached].sum()
    if reached < len(there):
        assert missed[::-1][: reached + 1].sum() > 0.1 * there[::-1][: reached + 1].sum() or not there[::-1][reached]
    assert reconstructions.reach(SMALL, stages, found, "real") == 0


def test_mnist_comes_from_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLESSM_DATA", str(tmp_path))
    with pytest.raises(ArgumentError, match=r"STABLESSM_DATA: expected a folder with mnist\.npz"):
        digits.digits("mnist", 2)
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "mnist.npz", x_test=images)
    np.testing.assert_array_equal(digits.digits("mnist", 3), images[:3] / 255)
    with pytest.raises(ArgumentError, match="mnist: expected 6 images"):
        digits.digits("mnist", 6)
    np.savez(tmp_path / "mnist.npz", x_train=images)
    with pytest.raises(ArgumentError, match=r"mnist\.npz: expected an array x_test"):
        digits.digits("mnist", 3)
    np.savez(tmp_path / "mnist.npz", x_test=images / 255)
    with pytest.raises(ArgumentError, match="mnist: expected whole numbers from 0 to 255, got float64"):
        digits.digits("mnist", 3)
    np.savez(tmp_path / "mnist.npz", x_test=np.uint8(3))
    with pytest.raises(ArgumentError, match="x_test has no axes"):
        digits.digits("mnist", 3)


@pytest.mark.parametrize("kind", ["text", "empty", "cut", "spoilt", "array"])
def test_spoilt_images_are_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLESSM_DATA", str(tmp_path))
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    np.savez_compressed(tmp_path / "mnist.npz", x_test=images)
    np.save(tmp_path / "array.npy", images)
    whole = (tmp_path / "mnist.npz").read_bytes()
    content = {
        "text": b"no such thing",
        "empty": b"",
        "cut": whole[:1000],
        "spoilt": whole[:200] + bytes(2000) + whole[2200:],
        "array": (tmp_path / "array.npy").read_bytes(),
    }[kind]
    (tmp_path / "mnist.npz").write_bytes(content)
    with pytest.raises(ArgumentError, match=r"mnist\.npz: expected an array x_test"):
        digits.digits("mnist", 3)


def test_without_a_folder_the_hub_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STABLESSM_DATA", raising=False)
    assert sources.find("mnist.npz") is None
    asked = []

    class Hub:
        @staticmethod
        def load_dataset(name: str, split: str) -> dict[str, list[np.ndarray]]:
            asked.append((name, split))
            return {"image": [np.full((28, 28), 51)] * 3}

    monkeypatch.setitem(sys.modules, "datasets", Hub)
    np.testing.assert_allclose(digits.digits("mnist", 2), np.full((2, 28, 28), 0.2))
    assert asked == [("ylecun/mnist", "test")]
    monkeypatch.setattr(Hub, "load_dataset", None)
    with pytest.raises(ArgumentError, match=r"STABLESSM_DATA: expected a folder with mnist\.npz .* cannot be loaded"):
        digits.digits("mnist", 2)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ArgumentError, match="no package datasets"):
        digits.digits("mnist", 2)


@settings(max_examples=10, deadline=None)
@given(count=st.integers(1, 5), side=st.integers(4, 20))
def test_made_up_images_are_images(count: int, side: int) -> None:
    images = digits.digits("synthetic", count, side)
    assert images.shape == (count, side, side)
    assert images.min() == 0.0
    assert images.max() <= 1.0
    np.testing.assert_array_equal(images, digits.digits("synthetic", count + 1, side)[:count])


def test_sparse_inputs_are_read_back_where_states_suffice(run: Run) -> None:
    config = sparse_reconstructions.SparseConfig(
        r_min=0.95, length=128, functions=8, sizes=(2, 8), enough=8, points=4, signals=3, draws=2
    )
    basis, u = sparse_reconstructions.inputs(config)
    torch.testing.assert_close(u, u @ basis @ basis.mT)
    assert config.steps().tolist() == [33, 64, 96, 128]
    sparse_reconstructions.run(config, run)
    enough, few = (sparse_reconstructions.errors(run, size, "ring")["error"] for size in (8, 2))
    assert enough.shape == (2, 4)
    assert enough.max() < 1e-8
    assert few[:, -1].min() > 0.1, "two complex states cannot hold eight numbers"
    ranks = sparse_reconstructions.ranks(run, 2)
    assert ranks["V"].max() == 4
    assert ranks["basis"].tolist()[-1] == 8
    np.testing.assert_array_equal(
        ranks["basis"], [torch.linalg.matrix_rank(haar(128, 8)[:k]) for k in (33, 64, 96, 128)]
    )


SHORT = volterra.Config(length=200, trajectories=50, d_state=16, hidden=(8,))


def test_inputs_of_lotka_volterra_are_in_the_span_and_keep_predators_positive() -> None:
    u, y = volterra.trajectories(SHORT)
    basis = fourier(200, 3)
    torch.testing.assert_close(u[..., 0], u[..., 0] @ basis @ basis.mT)
    assert float(u.min()) >= 0
    assert float(u.std(0).min()) > 0.1
    assert bool((y > 0).all())
    (seen, _), (held, _) = volterra.split(SHORT)
    assert (len(seen), len(held)) == (35, 15)
    paper = volterra.Config()
    assert int(paper.share * paper.trajectories) == paper.end_to_end.samples
    assert paper.fixed.samples == paper.end_to_end.samples * paper.length
    assert paper.fixed.samples % paper.fixed.batch == paper.end_to_end.samples % paper.end_to_end.batch == 0


@pytest.mark.parametrize("part", [0.0, 1e-3, 1.0])
def test_the_recurrence_moves_slowly_and_the_rest_does_not(part: float) -> None:
    start, moved = volterra.start(SHORT), volterra.start(SHORT)
    with torch.no_grad():
        for p in moved.parameters():
            p.add_(1.0)
    weights = volterra.slowly(start, moved, part)
    for name, p in start.named_parameters():
        step = part if name.startswith("recurrence.") else 1.0
        torch.testing.assert_close(weights[name], p + step, atol=1e-5, rtol=1e-5)


def test_a_fixed_recurrence_stays_fixed_in_training(run: Run) -> None:
    smoke = volterra.EXPERIMENT.configs["smoke"]
    start, fixed = volterra.start(smoke), volterra.trained(smoke, run, "fixed")
    both = volterra.trained(smoke, run, "end-to-end")
    for name, p in start.recurrence.named_parameters():
        assert torch.equal(p, fixed.recurrence.get_parameter(name)), name
        assert not torch.equal(p, both.recurrence.get_parameter(name)), name
    assert not torch.equal(start.mlp.readout.weight, fixed.mlp.readout.weight)


HOURS = ett.EXPERIMENT.configs["smoke"]


def test_windows_are_what_comes_and_the_day_before() -> None:
    x, ahead, before = ett.windows(HOURS)
    assert len(ahead) == len(x) - HOURS.horizon
    for k in (24, 100, len(ahead) - 1):
        torch.testing.assert_close(ahead[k], x[k + 1 : k + 25])
        torch.testing.assert_close(before[k], x[k - 23 : k + 1])
    first = x[: HOURS.parts[0]]
    torch.testing.assert_close(first.mean(0), torch.zeros(CHANNELS), atol=1e-5, rtol=0)
    torch.testing.assert_close(first.std(0, correction=0), torch.ones(CHANNELS), atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", ["smoke", "paper"])
def test_no_forecast_crosses_from_one_part_into_the_next(size: str) -> None:
    config = ett.EXPERIMENT.configs[size]
    ends = np.cumsum(config.parts)
    for number, end in enumerate(ends):
        rows = ett.part(config, number)
        assert rows.start >= (0 if number == 0 else ends[number - 1])
        assert rows.stop - 1 + config.horizon < end
    first = ett.part(config, 0)
    assert config.training.samples <= first.stop - first.start, "every batch is full"


def test_etth1_comes_from_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STABLESSM_DATA", raising=False)
    with pytest.raises(ArgumentError, match=r"STABLESSM_DATA: expected a folder with ETTh1\.csv\.gz"):
        hourly("etth1", 2)
    monkeypatch.setenv("STABLESSM_DATA", str(tmp_path))
    rows = [
        "date," + ",".join("abcdefg"),
        *(f"2016-07-01 0{i}:00:00," + ",".join(f"{i}.{j}" for j in range(7)) for i in range(3)),
    ]
    with gzip.open(tmp_path / FILE, "wt", encoding="utf-8") as file:
        file.write("\n".join(rows))
    np.testing.assert_allclose(hourly("etth1", 2), [[i + j / 10 for j in range(7)] for i in range(2)])
    with pytest.raises(ArgumentError, match=r"ETTh1\.csv\.gz: expected 4 rows or more, got 3"):
        hourly("etth1", 4)
    whole = (tmp_path / FILE).read_bytes()
    one, few, many = rows[:2], [row.rsplit(",", 1)[0] for row in rows], [f"{row},1" for row in rows]
    (tmp_path / FILE).write_bytes(gzip.compress("\n".join(one).encode()))
    assert hourly("etth1", 1).shape == (1, CHANNELS)
    torn = [*rows, "2016-07-01 03:00:00,1"]
    texts = [gzip.compress("\n".join(lines).encode()) for lines in (few, many, rows[:1], [], torn)]
    spoilt = whole[:20] + bytes(20) + whole[40:]
    for content in (b"not gzip", b"", whole[:-10], spoilt, gzip.compress(b"\xff\xfe\n\xff"), *texts):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(ArgumentError, match=r"ETTh1\.csv\.gz(: expected a CSV file|, line 5: expected 8 cells)"):
            hourly("etth1", 1)
