"""Time of the first forward and backward pass in a new process whose caches of compiled kernels are empty.

python benchmarks/first_call.py --device cuda

Each case runs in a process of its own. Importing PyTorch and starting the GPU (a matrix product) come before the clock.
The second call shows that nothing is left to compile. ``warm_up`` is timed in the place of the first call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import _measure

CHILD = """
import json, sys, time, torch
import stablessm as ssm
case, device, scale, warm = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "warm"
one = torch.ones(64, 64, device=device, requires_grad=True)
(one @ one).sum().backward()
if device == "cuda":
    import triton
    torch.cuda.synchronize()
shape = 32 // scale, 1024 // scale, 256
if case == "linear_scan":
    decay = torch.rand(shape, device=device).requires_grad_()
    x = torch.randn(shape, device=device).requires_grad_()
    call = lambda: ssm.linear_scan(decay, x).sum().backward()
else:
    make = {"S4D": lambda: ssm.S4D(256, 16), "RealSSM": lambda: ssm.RealSSM(256, 64, 256),
            "LRU": lambda: ssm.LRU(256, 64, 256), "MinGRU": lambda: ssm.MinGRU(256, 64)}
    layer = make[case]().to(device)
    x = torch.randn(shape, device=device).requires_grad_()
    call = lambda: layer(x)[0].sum().backward()
seconds = []
for number in range(2):
    begun = time.perf_counter()
    ssm.warm_up(layer, shape) if warm and not number else call()
    if device == "cuda":
        torch.cuda.synchronize()
    seconds.append(time.perf_counter() - begun)
print(json.dumps(seconds))
"""
CASES = ("linear_scan", "S4D", "RealSSM", "LRU", "MinGRU")


def first(case: str, device: str, scale: int, warm: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "TRITON_CACHE_DIR": empty}
        command = [sys.executable, "-c", CHILD, case, device, str(scale), "warm" if warm else "cold"]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    one, two = json.loads(done.stdout.splitlines()[-1])
    found = {"case": case, "first": "warm_up" if warm else "forward+backward", "first_s": one, "second_s": two}
    print(f"{case:12} {found['first']:17} {one:6.2f} s, then {1e3 * two:7.1f} ms", flush=True)
    return found


def main() -> None:
    args = _measure.parser(__doc__, "first-call").parse_args()
    cases = CASES[1:2] if args.smoke else CASES
    rows = [first(case, args.device, 8 if args.smoke else 1, False) for case in cases]
    rows += [first(case, args.device, 8 if args.smoke else 1, True) for case in cases if case != "linear_scan"]
    summary = {f"{row['case']}, {row['first']}": round(row["first_s"], 2) for row in rows}
    out = _measure.record_path(args)
    _measure.write_record(out, args.device, rows, summary, cores=os.cpu_count())


if __name__ == "__main__":
    main()
