"""Names of backends, the old one among them, wherever a user can give one; and the protocol that each follows."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import stablessm as ssm
from stablessm import parallel, scan
from stablessm.scan import backends
from stablessm.scan.linear_op import scan_op
from stablessm.scan.ssm_op import ssm_op

DECAY, DRIVE = torch.rand(3), torch.randn(2, 5, 3)
A = torch.rand(3, 2)
LAYER = (DRIVE, A, A, A)
CPU = torch.device("cpu")

PLACES = {
    "linear_scan": lambda name: ssm.linear_scan(DECAY, DRIVE, backend=name),
    "linear_scan, compiled": lambda name: torch.compile(
        lambda a, x: ssm.linear_scan(a, x, backend=name), backend="eager", fullgraph=True
    )(DECAY, DRIVE),
    "ssm_scan": lambda name: ssm.ssm_scan(*LAYER, backend=name)[0],
    "ssm_scan, dense": lambda name: ssm.ssm_scan(DRIVE, A[:, 0], A @ A.T, A @ A.T, backend=name)[0],
    "sequence_scan": lambda name: parallel.sequence_scan(DECAY, DRIVE, backend=name),
    "sequence_ssm_scan": lambda name: parallel.sequence_ssm_scan(*LAYER, backend=name)[0],
    "the operator of an exported program": lambda name: scan_op(DECAY[None, None], DRIVE, None, None, False, name),
    "the operator of an exported layer": lambda name: ssm_op(*LAYER, None, None, None, None, name)[0],
    "resolve": lambda name: torch.tensor(scan.resolve(name, CPU) == "cpu"),
    "why_not": lambda name: torch.tensor(scan.why_not(name) is None),
    "probe": lambda name: torch.tensor(scan.probe(name).ran),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_old_name_means_the_new_one_and_warns(place: str) -> None:
    call = PLACES[place]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = call("cpu")
    with pytest.warns(DeprecationWarning, match="'numba' is the old name of 'cpu'"):
        assert torch.equal(call("numba"), expected)


def test_the_warning_names_the_line_of_the_caller() -> None:
    for call in (PLACES["linear_scan"], PLACES["ssm_scan"], PLACES["why_not"], PLACES["sequence_scan"]):
        with pytest.warns(DeprecationWarning, match="numba") as caught:
            call("numba")
        assert {warning.filename for warning in caught} == {__file__}


def test_an_exported_program_keeps_working(tmp_path: Path) -> None:
    """A program that was saved when the backend had its old name."""

    class Old(torch.nn.Module):
        def forward(self, drive: torch.Tensor) -> torch.Tensor:
            return torch.ops.stablessm.scan(DECAY[None, None], drive, None, None, False, "numba")

    with pytest.warns(DeprecationWarning, match="numba"):
        expected = ssm.linear_scan(DECAY, DRIVE, backend="numba")
    torch.export.save(torch.export.export(Old(), (DRIVE,)), tmp_path / "old.pt2")
    loaded = torch.export.load(tmp_path / "old.pt2").module()
    with pytest.warns(DeprecationWarning, match="numba"):
        assert torch.equal(loaded(DRIVE), expected)


@pytest.mark.slow
def test_a_command_line_takes_the_old_name(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "scan_check.py"
    command = [sys.executable, "-W", "always", str(script), "--backend", "numba", "--seconds", "0.05"]
    ran = subprocess.run([*command, "--out", str(tmp_path / "r.json")], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "'numba' is the old name of 'cpu'" in ran.stderr


@pytest.mark.parametrize("name", ["jax", "NUMBA", ""])
def test_other_names_are_refused(name: str) -> None:
    for call in (PLACES["linear_scan"], PLACES["why_not"], PLACES["probe"]):
        with pytest.raises(ssm.ArgumentError, match="'reference', 'cpu', 'triton'"):
            call(name)


def test_the_old_name_is_not_listed() -> None:
    assert scan.NAMES[:3] == ("reference", "cpu", "triton")
    assert "numba" not in scan.NAMES


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_the_reference_has_the_gradients_of_autograd(dtype: torch.dtype) -> None:
    """Its ``backward``, which autograd does not need, is the truth for that of other backends."""
    from stablessm.scan.protocol import DiagonalSSM, Recurrence

    linear, layer = backends.load("reference")[:2]
    torch.manual_seed(0)
    reset = torch.rand(2, 6) < 0.3
    for shape, reverse in (((1, 1, 3), False), ((2, 6, 3), True), ((1, 6, 3), False)):
        leaves = [torch.randn(size, dtype=dtype, requires_grad=True) for size in (shape, (2, 3), (2, 6, 3))]
        recurrence = Recurrence(leaves[0], leaves[1], reset, reverse)
        states = linear.forward(recurrence, leaves[2])
        grad = torch.randn_like(states)
        d_decay, d_initial, d_drive = torch.autograd.grad(states, leaves, grad)
        ours = linear.backward(recurrence, states, grad)
        torch.testing.assert_close(ours, (d_decay, d_drive, d_initial))
    x, D = torch.randn(2, 6, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    tensors = [x, *(torch.randn(3, 2, dtype=dtype) for _ in range(3)), D, torch.randn(2, 3, 2, dtype=dtype)]
    inputs = DiagonalSSM(*(tensor.requires_grad_() for tensor in tensors), reset, torch.tensor([4, 0]))
    y, final, checkpoints = layer.forward(inputs)
    assert (checkpoints.shape, checkpoints.dtype) == layer.checkpoint_shape(inputs)
    truth = torch.autograd.grad((y, final), tensors, (torch.ones_like(y), torch.ones_like(final)))
    torch.testing.assert_close(layer.backward(inputs, checkpoints, torch.ones_like(y), torch.ones_like(final)), truth)
