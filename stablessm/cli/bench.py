"""``stablessm bench``: measures speed and accuracy on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stablessm.cli.options import argument, option, refusing

SUITES = ("scan", "ssm", "accuracy", "stream")
STOPPED = "interrupted; the record holds what was measured so far and is marked as incomplete"


def bench(
    suite: str = argument("all", "Benchmark suite: scan, ssm, accuracy, stream, or all.", words=(*SUITES, "all")),
    device: str = option("cpu", "Device: cpu or cuda.", words=("cpu", "cuda")),
    sizes: str | None = option(
        None,
        "Shapes of the cases, separated by commas. Suite scan: BATCHxTIMExCHANNELS, such as 8x1024x256. Suite "
        "ssm: BATCHxTIMExCHANNELSxSTATES. Suite accuracy: number of steps. Suite stream: number of channels.",
        "--shapes",
        "--sizes",
    ),
    dtype: str | None = option(None, "Data types of the cases, such as float32,complex64; not allowed with suite all."),
    size: str = option("full", "Size of the cases: smoke (tiny) or full.", words=("smoke", "full")),
    smoke: bool = option(False, "Old name of --size smoke.", hidden=True),
    seconds: float = option(1.0, "Time limit in seconds for each implementation in each case."),
    out: Path = option(
        Path("runs/bench"), "Record to write: a .json file, or a folder for the file SUITE-DEVICE.json."
    ),
) -> dict[str, Any]:
    """Measure speed and accuracy on this machine.

    Other packages that are installed are measured too, and a record is written. The suites measure:

      scan      the recurrence h[t] = a[t] h[t-1] + x[t]
      ssm       the fused layer y = Re(C h) + D x
      accuracy  errors over a million steps; whether two runs agree to the bit
      stream    microseconds per step of a Streamer

    Every result is first compared with the float64 reference; wrong results are not timed. Times are medians, with
    quartiles in brackets. "× floor" is the time divided by the time in which a plain copy moves the same bytes. "vs
    peer" is the time of the fastest other package divided by the time of stablessm.

    Examples:

      stablessm bench scan --device cuda --shapes 8x2048x2048 --dtype bfloat16
      stablessm bench ssm --shapes 8x1024x256x16
      stablessm bench stream --shapes 64,256 --out stream.json
      stablessm bench all --size smoke
    """
    from stablessm.bench.command import run
    from stablessm.bench.options import Options

    with refusing(interrupted=STOPPED):
        tiny = smoke or size == "smoke"
        options = Options.of(device=device, sizes=sizes, dtype=dtype, smoke=tiny, seconds=seconds, out=out)
        written = run(suite, options)
    return {"written": written}
