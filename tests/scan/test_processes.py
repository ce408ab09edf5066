"""The scan among processes: DataLoader workers, fork, threads, and machines where packages are missing."""

from __future__ import annotations

import os
import threading
import warnings

import fresh_process
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from stablessm import linear_scan

DECAY, DRIVE = torch.full((64,), 0.5), torch.ones(2, 1000, 64)


def scan_in_parallel() -> bytes:
    """Two threads: PyTorch's OpenMP team here, Python's in a forked child, where that team would wait for ever."""
    torch.set_num_threads(2)
    return linear_scan(DECAY, DRIVE).numpy().tobytes()


class Scanned(Dataset):
    """Each item is a scan, run in the worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return linear_scan(torch.full((64,), 0.5), torch.full((1, 1000, 64), float(index)))


def test_dataloader_workers_before_and_after_a_parallel_scan() -> None:
    for _ in range(2):
        batches = list(DataLoader(Scanned(), batch_size=2, num_workers=2))
        assert torch.cat(batches)[:, 0, -1, 0].tolist() == pytest.approx([0, 2, 4, 6])
        scan_in_parallel()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_fork_after_a_parallel_scan() -> None:
    expected = scan_in_parallel()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of forking with threads, which is what we test
        child = os.fork()
    if child == 0:
        os._exit(0 if scan_in_parallel() == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_many_threads_at_once() -> None:
    expected, results = scan_in_parallel(), []
    threads = [threading.Thread(target=lambda: results.append(scan_in_parallel())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(result == expected for result in results)


BARE = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing!r}:
            raise ModuleNotFoundError(name)
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {missing!r} else found(name, package)
sys.meta_path.insert(0, Missing())
import torch, stablessm as ssm
layer = ssm.RealSSM(1, 4, 1)
y, state = layer(torch.ones(1, 40, 1))
print(ssm.scan.resolve("auto", torch.device("cpu")))
h = ssm.linear_scan(torch.tensor([0.5]), torch.ones(1, 3, 1))
assert h.flatten().tolist() == [1.0, 1.5, 1.75]
try:
    ssm.linear_scan(torch.tensor([0.5]), torch.ones(1, 3, 1), backend={gone!r})
except ssm.BackendUnavailableError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("missing", "auto", "gone"),
    [
        (["llvmlite", "scipy", "typer", "rich", "matplotlib", "tqdm", "triton"], "reference", "cpu"),
        (["triton"], "cpu", "triton"),
    ],
)
def test_import_and_auto_without_optional_packages(missing: list[str], auto: str, gone: str) -> None:
    script = BARE.format(missing=missing, gone=gone)
    result = fresh_process.run(script)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0] == auto
    assert f"backend: '{gone}' was requested, but" in result.stdout
    assert "pip install" in result.stdout
