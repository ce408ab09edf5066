import copy

import pytest
import torch

from stablessm._errors import ArgumentError
from stablessm.reparam import matrix

MAPS = [
    *map(matrix.get, matrix.names()),
    matrix.get("project", margin=0.3),
    matrix.get("skew_minus_psd", margin=0.5),
]


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def abscissa(W):
    return torch.linalg.eigvals(W).real.amax(-1)


@pytest.mark.parametrize("g", MAPS, ids=repr)
def test_stable_maps_are_stable_and_invertible(g):
    M = gaussian(3, 20, 8, 8)
    W = g(M)
    assert W.shape == M.shape
    assert g(M.float()).dtype == torch.float32
    if g.is_stable:
        assert (abscissa(W) < -0.99 * getattr(g, "margin", 0.0)).all()
    torch.testing.assert_close(g(g.inverse(W)), W, rtol=1e-9, atol=1e-9)


def test_published_formulas_are_unstable_and_ours_are_not():
    M = gaussian(200, 32, 32)
    for name in ("neg_exp", "neg_softplus"):
        g = matrix.get(name)
        assert (abscissa(g(M)) < 0).all()
        assert (abscissa(g.published(M)) > 0).double().mean() > 0.95


def test_published_formulas_agree_with_ours_on_symmetric_matrices():
    M = gaussian(5, 5)
    S = M + M.mT
    for name in ("neg_exp", "neg_softplus"):
        g = matrix.get(name)
        torch.testing.assert_close(g.published(S), g(S).to(g.published(S).dtype))


def test_smallest_counterexample():
    rotation = 3.0 * torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    for name in ("neg_exp", "neg_softplus"):
        assert abscissa(matrix.get(name).published(rotation)) > 0


def repeated(spectrum):
    Q, _ = torch.linalg.qr(gaussian(len(spectrum), len(spectrum)))
    return (Q * torch.tensor(spectrum, dtype=torch.float64)) @ Q.mT


@pytest.mark.parametrize("g", MAPS, ids=repr)
@pytest.mark.parametrize("skew", [0.0, 1.0])
@pytest.mark.parametrize("spectrum", [(-2.0, -2.0, 1.5, 1.5), (-3.0, -1.0, 0.5, 2.0), (1.0, 1.0 + 1e-7, 30.0, -30.0)])
def test_gradients_survive_repeated_eigenvalues(g, skew, spectrum):
    if g.name == "neg_exp":
        spectrum = tuple(s / 10 for s in spectrum)  # e^30 leaves finite differences no digits
    A = gaussian(4, 4, seed=1)
    M = (repeated(spectrum) + skew * (A - A.mT)).requires_grad_()
    assert torch.autograd.gradcheck(g, M)


@pytest.mark.parametrize("g", MAPS, ids=repr)
def test_gradient_at_zero_is_finite(g):
    M = torch.zeros(5, 5, requires_grad=True)
    (g(M) * torch.arange(25.0).reshape(5, 5)).sum().backward()
    assert M.grad.isfinite().all()


def test_softplus_gradient_at_zero_is_minus_half_the_symmetric_part():
    M = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    G = gaussian(3, 3)
    (matrix.get("neg_softplus")(M) * G).sum().backward()
    torch.testing.assert_close(M.grad, -(G + G.mT) / 4)


def test_project_is_the_nearest():
    g, M = matrix.get("project", margin=0.2), gaussian(6, 6)
    nearest = torch.linalg.norm(g(M) - M)
    torch.testing.assert_close(g(g(M)), g(M))
    for seed in range(50):
        other = g(g(M) + 0.1 * gaussian(6, 6, seed=seed))
        assert torch.linalg.norm(other - M) >= nearest


@pytest.mark.parametrize(
    ("g", "W", "message"),
    [
        (matrix.get("neg_exp"), [[-1.0, 1.0], [0.0, -1.0]], "W: expected a symmetric matrix"),
        (matrix.get("neg_softplus"), [[-1.0, 2.0], [2.0, -1.0]], "eigenvalues below 0, got 1"),
        (matrix.get("project"), [[-1.0, 4.0], [0.0, -1.0]], "eigenvalues below 0, got 1"),
        (matrix.get("skew_minus_psd", margin=0.5), [[-0.4, 9.0], [-9.0, -1.0]], "below -0.5, got -0.4"),
    ],
)
def test_inverse_refuses_what_it_cannot_reach(g, W, message):
    with pytest.raises(ArgumentError, match=message):
        g.inverse(torch.tensor(W))


def test_get():
    g = matrix.get("project", margin=0.1)
    assert matrix.get(g) is g
    assert copy.deepcopy(g) == g != matrix.get("project")
    assert not matrix.get("project").is_stable
    for arguments, options, message in [
        (("nope",), {}, "map: expected one of direct, neg_exp"),
        (("neg_exp",), {"margin": 1.0}, "margin: expected no options"),
        (("project",), {"margin": -1.0}, "margin: expected a finite number"),
        (("skew_minus_psd",), {"margin": 0.0}, "margin: expected a finite number"),
        ((g,), {"margin": 0.2}, "margin: expected no options"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            matrix.get(*arguments, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", matrix.names())
def test_half_precision_is_computed_in_float32(name, dtype):
    chosen, M = matrix.get(name), torch.diag(-torch.ones(3)).to(dtype).requires_grad_()
    W = chosen(M)
    W.sum().backward()
    assert W.dtype == M.grad.dtype == dtype
    torch.testing.assert_close(W, chosen(M.detach().float()).to(dtype))
    negative = -torch.eye(3)
    torch.testing.assert_close(chosen.inverse(negative.to(dtype)), chosen.inverse(negative).to(dtype))


@pytest.mark.parametrize("name", matrix.names())
def test_maps_of_a_stack_are_those_of_its_matrices(name):
    chosen = matrix.get(name)
    Ms = torch.randn(3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = torch.arange(16.0, dtype=torch.float64).view(4, 4)
    stacked, single = Ms.clone().requires_grad_(), Ms.clone().requires_grad_()
    Ws = torch.vmap(chosen)(stacked)
    (Ws * weights).sum().backward()
    expected = torch.stack([chosen(M) for M in single])
    (expected * weights).sum().backward()
    torch.testing.assert_close(Ws, expected)
    torch.testing.assert_close(stacked.grad, single.grad)
