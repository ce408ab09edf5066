"""The stability radius against brute force, closed forms, and what it promises about perturbed weights."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import nn

import stablessm as ssm
from stablessm import ArgumentError, NumericalError, reparam
from stablessm.instruments import _dense
from stablessm.instruments.radius import NearestBoundary, nearest_boundary, stability_radius

TIMES = ("continuous", "discrete")
EPS = np.finfo(float).eps
SEEDS = st.integers(0, 2**32 - 1)


def on_boundary(s, time):
    return 1j * s if time == "continuous" else np.exp(1j * s)


def sigma_min(W, s, time):
    z = on_boundary(np.asarray(s), time)[..., None, None]
    return np.linalg.svd(z * np.eye(len(W)) - W, compute_uv=False)[..., -1]


def grid(W, time, size):
    reach = 2 * np.linalg.norm(W, 2) if time == "continuous" else math.pi
    return np.linspace(-reach, reach, size)


def brute_force(W, time):
    """The smallest of 2000 samples and the eigenvalues' own places, the best ten minima refined."""
    eigenvalues = np.linalg.eigvals(W)
    places = eigenvalues.imag if time == "continuous" else np.angle(eigenvalues)
    s = np.sort(np.concatenate([grid(W, time, 2000), places]))
    value = sigma_min(W, s, time)
    inner = np.flatnonzero((value[1:-1] <= value[:-2]) & (value[1:-1] <= value[2:])) + 1
    refined = [
        minimize_scalar(lambda x: sigma_min(W, x, time), bounds=(s[i - 1], s[i + 1]), options={"xatol": 1e-13}).fun
        for i in inner[np.argsort(value[inner])][:10]
    ]
    return min([value.min(), *refined])


def stable_matrix(seed, n, kind, time):
    """A random stable matrix: ``normal``, ``dense``, ``complex``, or ``triangular`` and far from normal."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, n))
    if kind == "complex":
        A = A + 1j * rng.standard_normal((n, n))
    elif kind == "triangular":
        A = np.triu(A, 1) * 10 ** rng.uniform(0, 1.5) + np.diag(rng.standard_normal(n))
    elif kind == "normal":
        Q = np.linalg.qr(A)[0]
        A = Q @ np.diag(rng.standard_normal(n) * 10 ** rng.uniform(-2, 2, n)) @ Q.T
    eigenvalues = np.linalg.eigvals(A)
    if time == "continuous":
        return A - (eigenvalues.real.max() + 10 ** rng.uniform(-3, 1)) * np.eye(n)
    return A / np.abs(eigenvalues).max() * (1 - 10 ** rng.uniform(-3, -0.01))


matrices = {
    "seed": SEEDS,
    "n": st.integers(1, 12),
    "kind": st.sampled_from(["normal", "dense", "complex", "triangular"]),
}


def rounding(W):
    return 10 * len(W) * EPS * (1 + np.linalg.norm(W))


@pytest.mark.parametrize("time", TIMES)
@settings(max_examples=30)
@given(**matrices)
def test_a_dense_radius_agrees_with_brute_force(time, seed, n, kind):
    W = stable_matrix(seed, n, kind, time)
    assert stability_radius(W, time=time) == pytest.approx(brute_force(W, time), rel=1e-6, abs=rounding(W))


@pytest.mark.parametrize("time", TIMES)
@settings(max_examples=30)
@given(**matrices)
def test_a_dense_radius_is_the_smallest_error_that_matters(time, seed, n, kind):
    W = stable_matrix(seed, n, kind, time)
    radius = stability_radius(W, time=time)
    rng = np.random.default_rng(seed)
    for _ in range(10):
        error = rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))
        perturbed = W + 0.999 * radius * error / np.linalg.norm(error, 2)
        assert _dense.spectral_bound(torch.linalg.eigvals(torch.tensor(perturbed)), time) < (
            time == "discrete"
        ) + rounding(W)


@pytest.mark.parametrize("time", TIMES)
@settings(max_examples=30)
@given(**matrices)
def test_a_dense_radius_ignores_the_basis_and_the_adjoint(time, seed, n, kind):
    W = stable_matrix(seed, n, kind, time)
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))[0]
    expected = pytest.approx(stability_radius(W, time=time), rel=1e-9, abs=rounding(W))
    assert stability_radius(Q @ W @ Q.T, time=time) == expected
    assert stability_radius(W.conj().T, time=time) == expected


@settings(max_examples=30)
@given(power=st.integers(-1000, 900), **matrices)
def test_a_dense_radius_scales_with_the_matrix(power, seed, n, kind):
    W = stable_matrix(seed, n, kind, "continuous")
    W /= np.abs(W).max()
    assert math.ldexp(stability_radius(W), power) == stability_radius(W * 2.0**power)


@pytest.mark.parametrize("time", TIMES)
@settings(max_examples=30)
@given(seed=SEEDS, n=st.integers(1, 12))
def test_a_normal_matrix_is_as_far_as_its_eigenvalues(time, seed, n):
    W = stable_matrix(seed, n, "normal", time)
    eigenvalues = np.linalg.eigvals(W)
    nearest = -eigenvalues.real.max() if time == "continuous" else 1 - np.abs(eigenvalues).max()
    assert stability_radius(W, time=time) == pytest.approx(nearest, rel=1e-9, abs=rounding(W))


@pytest.mark.parametrize("skew", [1.0, 4.0])
@pytest.mark.parametrize("time", TIMES)
def test_a_dip_between_the_points_of_a_grid_is_found(time, skew):
    slow = -1e-5 + 37.123j if time == "continuous" else (1 - 1e-5) * np.exp(1.2345j)
    mode = np.array([[slow.real, slow.imag * skew], [-slow.imag / skew, slow.real]])
    other = np.diag([-1.0, -3.0, -50.0]) if time == "continuous" else np.diag([0.1, -0.5, 0.9])
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 5)))[0]
    W = Q @ np.block([[mode, np.zeros((2, 3))], [np.zeros((3, 2)), other]]) @ Q.T
    radius = stability_radius(W, time=time)
    assert sigma_min(W, grid(W, time, 1000), time).min() > 10 * radius
    assert radius == pytest.approx(brute_force(W, time), rel=1e-8)
    assert radius == pytest.approx(2 * 1e-5 / (skew + 1 / skew), rel=1e-4)


@pytest.mark.parametrize("time", TIMES)
def test_one_dip_among_many_is_found(time):
    rng, blocks = np.random.default_rng(0), []
    for k in range(50):
        mode, skew = -0.01 + (k + 1) * 1j, 1 + 0.001 * rng.random()
        mode = mode if time == "continuous" else np.exp(mode * 0.06)
        blocks.append(np.array([[mode.real, mode.imag * skew], [-mode.imag / skew, mode.real]]))
    W = torch.block_diag(*map(torch.tensor, blocks))
    alone = min(stability_radius(block, time=time) for block in blocks)
    assert stability_radius(W, time=time) == pytest.approx(alone, rel=1e-9)


@pytest.mark.parametrize("time", TIMES)
def test_matrices_that_are_not_stable_have_no_radius(time):
    edge = 0.0 if time == "continuous" else 1.0
    for top in (edge, edge + 0.1):
        assert stability_radius(torch.diag(torch.tensor([top, -0.5])), time=time) == 0
    assert stability_radius(np.array([[0.0, 1.0], [-1.0, 0.0]]), time=time) == 0


def test_small_matrices_and_dtypes():
    assert stability_radius(torch.tensor([[-2.0 + 5.0j]])) == 2
    assert stability_radius(torch.tensor([[-0.25]]), time="discrete") == 0.75
    assert stability_radius(torch.zeros(3, 3), time="discrete") == 1
    assert stability_radius(np.zeros((0, 0))) == math.inf
    assert stability_radius(np.array([[-3]])) == 3
    W = torch.randn(4, 4).double() - 4 * torch.eye(4)
    assert stability_radius(W.float()) == stability_radius(W.float().double())
    assert stability_radius(W.requires_grad_()) == stability_radius(W.detach().numpy(), time="continuous")


@pytest.mark.parametrize(
    ("x", "time", "argument"),
    [
        (torch.zeros(2, 3), None, "x"),
        (torch.zeros(2, 2, 2), None, "x"),
        (torch.tensor([[math.nan]]), None, "x"),
        (np.array([[math.inf]]), "discrete", "x"),
        ("RealSSM", None, "x"),
        (torch.zeros(1, 1), "sampled", "time"),
        (nn.Linear(2, 2), None, "model"),
        (ssm.LRU(1, 2, 1), "discrete", "time"),
    ],
)
def test_wrong_arguments_are_named(x, time, argument):
    with pytest.raises(ArgumentError) as error:
        stability_radius(x, time=time)
    assert error.value.argument == argument


def test_a_radius_that_does_not_settle_says_so(monkeypatch):
    monkeypatch.setattr(_dense, "_ROUNDS", 0)
    with pytest.raises(NumericalError, match="at most"):
        stability_radius(torch.tensor([[-1.0, 10.0], [0.0, -1.0]]))


STABLE = torch.tensor([-0.3, -1.0, -1.9])
INSIDE = torch.tensor([0.2, 0.5, 0.9])


def all_layers(map, time):
    """Every diagonal layer, with eigenvalues that every map reaches."""
    if time == "discrete":
        turned = torch.polar(INSIDE, torch.tensor([0.1, 2.0, -1.0]))
        return [
            ssm.RealSSM(2, 3, 1, map=map, time="discrete", eigenvalues=INSIDE),
            ssm.LRU(2, 3, 1, map=map, eigenvalues=turned),
        ]
    return [
        ssm.RealSSM(2, 3, 1, map=map, eigenvalues=STABLE),
        ssm.S4D(2, 3, map=map, eigenvalues=torch.complex(STABLE, torch.tensor([1.0, -7.0, 30.0]))),
        ssm.ContinuousRNN(2, 3, 1, recurrence="diagonal", map=map, eigenvalues=STABLE),
    ]


@pytest.mark.parametrize(
    ("time", "name", "options", "radius"),
    [
        ("continuous", "direct", {}, 0.3),
        ("continuous", "clip", {}, 0.3),
        ("continuous", "relu", {}, 0.3),
        ("discrete", "direct", {}, 0.1),
        ("discrete", "clip", {}, 0.1),
        ("discrete", "relu", {}, -math.log(0.9)),
        ("discrete", "best", {"b": 0.5}, math.sqrt(1 / (1 - 0.2) - 0.5)),  # λ = -1 at w = 0
    ],
)
def test_maps_that_reach_the_boundary(time, name, options, radius):
    for layer in all_layers(reparam.get(name, time, **options), time):
        assert stability_radius(layer) == pytest.approx(radius, rel=1e-6)


@pytest.mark.parametrize("time", TIMES)
def test_stable_maps_have_an_infinite_radius(time):
    maps = [reparam.get(name, time) for name in reparam.names(time)]
    for f in [*filter(lambda f: f.is_stable, maps), reparam.get("clip", time, margin=0.05)]:
        assert all(stability_radius(layer) == math.inf for layer in all_layers(f, time))


@pytest.mark.parametrize("time", TIMES)
@settings(max_examples=20)
@given(seed=SEEDS)
def test_no_smaller_error_in_the_weights_makes_a_layer_unstable(time, seed):
    torch.manual_seed(seed)
    for layer in all_layers("direct", time):
        radius = stability_radius(layer)
        weight = getattr(layer, layer.recurrent_parameters[0])
        with torch.no_grad():
            weight += 0.999 * radius * (2 * torch.rand_like(weight).round() - 1)
            assert stability_radius(layer) > 0
        eigenvalues = layer.eigenvalues().detach()
        assert bool((eigenvalues.real < 0).all() if time == "continuous" else (eigenvalues.abs() < 1).all())


def test_dense_recurrences():
    M = torch.tensor([[-1.0, 10.0], [0.0, -1.0]])
    for map, radius in [("direct", stability_radius(M)), ("skew_minus_psd", math.inf), ("neg_exp", math.inf)]:
        layer = ssm.ContinuousRNN(1, 2, 1, map=map)
        with torch.no_grad():
            layer.M.copy_(M)
        assert nearest_boundary(layer) == NearestBoundary("", None, radius)
    assert stability_radius(ssm.ContinuousRNN(1, 2, 1, map=reparam.matrix.get("project", margin=1e-4))) == math.inf


@settings(max_examples=100)
@given(
    seed=SEEDS,
    n=st.integers(1, 10),
    name=st.sampled_from(["neg_exp", "neg_softplus", "project", "skew_minus_psd"]),
    power=st.floats(-1, 1.8),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_a_matrix_map_that_lost_a_sign_has_no_radius(seed, n, name, power, dtype):
    """Symmetric weights with eigenvalues spread over up to 126, general ones with entries of that size."""
    options = {"margin": 10 ** (-5 - power)} if name in ("project", "skew_minus_psd") else {}
    layer = ssm.ContinuousRNN(1, n, 1, map=reparam.matrix.get(name, **options)).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    M = torch.randn(n, n, generator=generator, dtype=torch.float64)
    if name in ("neg_exp", "neg_softplus"):
        V = torch.linalg.qr(M)[0]
        M = (V * (2 * torch.rand(n, generator=generator, dtype=torch.float64) - 1)) @ V.mT
    with torch.no_grad():
        layer.M.copy_(10**power * M)
        W = layer.recurrent_matrix().double()
    radius, top = stability_radius(layer), float(torch.linalg.eigvals(W).real.max())
    resolution = n * torch.finfo(dtype).eps * float(torch.linalg.matrix_norm(W))
    if top >= 0:
        assert radius == 0
    elif radius < math.inf:
        assert radius == stability_radius(W) <= resolution
    else:
        assert top <= -resolution


def test_signs_lost_in_single_precision():
    V = torch.linalg.qr(torch.randn(6, 6).double())[0]
    spread = (V * torch.linspace(-12, 12, 6)) @ V.mT
    for name, M in (("neg_exp", spread), ("neg_softplus", 1e3 * spread)):
        layer = ssm.ContinuousRNN(1, 6, 1, map=name)
        with torch.no_grad():
            layer.M.copy_(M)
        assert stability_radius(layer) < 1e-2
    with torch.no_grad():
        layer.M.copy_(torch.zeros(6, 6))
    assert stability_radius(layer) == math.inf


@pytest.mark.parametrize(
    ("map", "time", "w"), [("exp", "continuous", -200.0), ("exp", "discrete", -40.0), ("tanh", "discrete", 30.0)]
)
def test_an_eigenvalue_that_rounds_onto_the_boundary_has_no_radius(map, time, w):
    layer = ssm.RealSSM(1, 2, 1, map=map, time=time)
    assert stability_radius(layer) == math.inf
    with torch.no_grad():
        layer.w[1] = w
    assert nearest_boundary(layer) == NearestBoundary("", (1,), 0.0)


@settings(max_examples=20)
@given(seed=SEEDS)
def test_the_radius_without_a_margin_is_a_lower_bound_through_the_projection(seed):
    torch.manual_seed(seed)
    layer = ssm.ContinuousRNN(1, 4, 1, map="project").double()
    with torch.no_grad():
        layer.M.normal_()
        radius = stability_radius(layer)
        error = torch.randn(4, 4, dtype=torch.float64)
        layer.M += 0.999 * radius * error / torch.linalg.matrix_norm(error)
    assert bool((layer.eigenvalues().real <= 1e-14).all())


def test_the_nearest_recurrence_of_a_nested_model_is_named():
    model = nn.Sequential(
        ssm.Bidirectional(ssm.LRU(2, 4, 2, map="direct", r_max=0.9)),
        nn.ModuleDict(
            {"dense": ssm.ContinuousRNN(1, 3, 1), "slow": ssm.RealSSM(1, 3, 1, map="relu", eigenvalues=STABLE)}
        ),
        nn.Linear(2, 2),
    )
    with torch.no_grad():
        model[1]["slow"].w[1] = 1e-4
    assert nearest_boundary(model) == NearestBoundary("1.slow", (1,), pytest.approx(1e-4))
    assert stability_radius(model) == nearest_boundary(model).distance


def test_the_mode_of_a_channel_is_named():
    layer = ssm.S4D(3, 2, map="direct")
    with torch.no_grad():
        layer.w[2, 1] = -1e-3
    assert nearest_boundary(layer) == NearestBoundary("", (2, 1), pytest.approx(1e-3))


def test_weights_that_are_not_numbers_are_refused():
    for layer in (ssm.LRU(1, 2, 1), ssm.ContinuousRNN(1, 2, 1, map="skew_minus_psd")):
        with torch.no_grad():
            getattr(layer, layer.recurrent_parameters[0]).view(-1)[0] = math.nan
        with pytest.raises(ArgumentError, match="finite"):
            stability_radius(nn.Sequential(layer))


def test_a_map_without_its_weight_is_not_passed_over():
    hidden = nn.Linear(1, 1)
    hidden.map = reparam.get("direct")
    with pytest.raises(ArgumentError, match="a weight first in `recurrent_parameters`"):
        stability_radius(nn.Sequential(ssm.LRU(1, 2, 1), hidden))
