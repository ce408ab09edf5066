"""``stablessm export``: a model as a file that runs elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stablessm._arguments import one_of
from stablessm._errors import ArgumentError, BackendUnavailableError
from stablessm.cli.options import refusing

FORMATS = {".onnx": "onnx", ".pt2": "torch"}
KINDS = ("step", "sequence")


def export(
    model: Annotated[
        str, typer.Argument(help="A folder saved by stablessm, or package.module:factory, whose code runs.")
    ],
    path: Annotated[Path, typer.Argument(help="File to write; it ends in .onnx or .pt2 (torch.export).")],
    kind: Annotated[
        str,
        typer.Option(help="What one call computes: step (one sample) or sequence (whole sequences of any length)."),
    ] = "step",
    batch: Annotated[
        int | None, typer.Option(min=1, help="Fixed number of streams; only with --kind step (default: any number).")
    ] = None,
) -> None:
    """Write (x, states) -> (y, states) of a model as ONNX or for torch.export.

    Weights are frozen, and complex states are pairs of real numbers. The states that one call returns are the states of
    the next call.

    Examples:

      stablessm export runs/my-layer step.onnx

      stablessm export runs/my-layer sequence.onnx --kind sequence

      stablessm export my_package.models:build step.pt2 --batch 4
    """
    import stablessm
    from stablessm.cli import model_source

    with refusing(BackendUnavailableError, OSError, cannot=f"export {model}"):
        if path.suffix not in FORMATS:
            raise ArgumentError("PATH", f"a file that ends in {' or '.join(FORMATS)}", str(path))
        one_of("--kind", kind, KINDS)
        if kind == "sequence" and batch is not None:
            raise ArgumentError("--batch", "no value, since --kind sequence takes any number of sequences", batch)
        loaded, _ = model_source.load_model(model)
        format: Any = FORMATS[path.suffix]
        if kind == "sequence":
            stablessm.export_sequence(loaded, path, format=format)
        else:
            stablessm.export_step(loaded, path, format=format, batch=batch)
    typer.echo(f"written: {path}")
