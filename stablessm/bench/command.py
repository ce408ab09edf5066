"""The command, without typer: ``stablessm bench`` and ``python -m stablessm.bench`` both end here."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from stablessm._errors import ArgumentError
from stablessm.bench import machine
from stablessm.bench.options import Options

SUITES = {
    "scan": "h[t] = a[t] h[t-1] + x[t] beside every peer that is installed, and the floor",
    "ssm": "the fused layer y = Re(C h) + D x beside FFT convolution and a scan that writes its states",
    "accuracy": "errors of the scan against float64 over a million steps, and whether two runs give the same bits",
    "stream": "microseconds that one step takes, and its tail: the streamer beside layer.step and onnxruntime",
}
"""Each is a module of this package."""
HELP = """
Speed and accuracy on this machine: ours, the peers that are installed and what the hardware can do, in one run.

Every result is first compared with the float64 reference, and a wrong one gets no time. Times are medians of turns,
with quartiles in brackets. "× floor": over the time in which a plain copy moves as many bytes as must be moved.
"vs peer": the best peer's time over this one's, above 1 is faster.
"""
EXAMPLES = """
examples:
  stablessm bench scan
  stablessm bench scan --device cuda --sizes 8x2048x2048 --dtype float32,bfloat16
  stablessm bench ssm --sizes 8x1024x256x16
  stablessm bench accuracy --out accuracy.json
  stablessm bench stream --sizes 64,256
  stablessm bench all --smoke
  python -m stablessm.bench scan      (the same, where typer is not installed)
"""
INTERRUPTED = "interrupted; what was measured is in the record, which says that it is not complete"


def run(suite: str, options: Options) -> list[Path]:
    """Run one suite, or ``all``; the records it wrote."""
    if suite not in (*SUITES, "all"):
        raise ArgumentError("suite", f"one of {', '.join(SUITES)}, all", repr(suite))
    everything = [name for name in SUITES if options.device == "cpu" or name != "stream"]  # which runs on the CPU only
    chosen = everything if suite == "all" else [suite]
    if suite == "all" and (options.sizes or options.dtypes):
        raise ArgumentError("suite", "one of them, as sizes and dtypes are a suite's own", "'all'")
    if suite == "all" and options.out.suffix == ".json":
        raise ArgumentError("out", "a folder, as every suite has its own record", str(options.out))
    if not options.smoke:
        machine.keep_memory()
    paths = []
    for name in chosen:
        importlib.import_module(f"stablessm.bench.{name}").run(options)
        paths.append(options.path(name))
        print(f"\nwritten: {paths[-1]}")
    return paths


def main(arguments: Sequence[str] | None = None, out: Path = Options.out) -> None:
    """What ``python -m stablessm.bench`` does."""
    text = {"description": HELP, "epilog": EXAMPLES, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(prog="python -m stablessm.bench", **text)  # type: ignore[arg-type]
    suites = "; ".join(f"{name}: {what}" for name, what in SUITES.items())
    parser.add_argument("suite", nargs="?", default="all", help=f"{suites}; all (the default)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--sizes",
        help="such as 8x1024x256 (batch, time, channels; ssm: and states; accuracy: steps; stream: width), several"
        " separated by commas",
    )
    parser.add_argument("--dtype", help="such as float32,complex64")
    parser.add_argument("--smoke", action="store_true", help="tiny and quick, to see that it runs")
    parser.add_argument("--seconds", type=float, default=1.0, help="most time for one contender in one case")
    parser.add_argument("--out", type=Path, default=out, help="a .json file, or a folder for SUITE-DEVICE.json")
    typed = vars(parser.parse_args(arguments))
    try:
        run(typed.pop("suite"), Options.of(**typed))
    except ArgumentError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
