"""``stablessm bench``: speed and accuracy on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stablessm.cli.options import refusing

STOPPED = "interrupted; the record holds what was measured and says that it is not complete"


def bench(
    suite: Annotated[str, typer.Argument(help="scan, ssm, accuracy, stream, or all.")] = "all",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Such as 8x1024x256 (batch, time, channels; ssm: and states; accuracy: steps; stream: width), several"
            " separated by commas."
        ),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Such as float32,complex64.")] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="Tiny and quick, to see that it runs.")] = False,
    seconds: Annotated[float, typer.Option(help="Most time for one contender in one case.")] = 1.0,
    out: Annotated[Path, typer.Option(help="A .json file, or a folder for SUITE-DEVICE.json.")] = Path("runs/bench"),
) -> None:
    """Measure stablessm, the installed peers and the hardware's limit in one run, and write a record.

    scan: h[t] = a[t] h[t-1] + x[t]. ssm: the fused layer y = Re(C h) + D x. accuracy: errors of the scan against
    float64 over a million steps, and whether two runs give the same bits. stream: microseconds per step of a Streamer.

    Every result is first compared with the float64 reference; a wrong result gets no time. Times are medians of
    turns, with quartiles in brackets. "× floor" is the time divided by the time a plain copy needs to move the same
    bytes. "vs peer" is the best peer's time divided by this time; above 1 is faster.

    Examples:

      stablessm bench scan

      stablessm bench scan --device cuda --sizes 8x2048x2048 --dtype float32,bfloat16

      stablessm bench ssm --sizes 8x1024x256x16

      stablessm bench accuracy --out accuracy.json

      stablessm bench stream --sizes 64,256

      stablessm bench all --smoke
    """
    from stablessm.bench.command import run
    from stablessm.bench.options import Options

    with refusing(interrupted=STOPPED):
        run(suite, Options.of(device=device, sizes=sizes, dtype=dtype, smoke=smoke, seconds=seconds, out=out))
