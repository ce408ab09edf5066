"""``stablessm export``: the step of a model as a file that runs elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stablessm._errors import ArgumentError, BackendUnavailableError
from stablessm.cli.options import refusing

FORMATS = {".onnx": "onnx", ".pt2": "torch"}


def export(
    model: Annotated[
        str, typer.Argument(help="A folder saved by stablessm, or package.module:factory, whose code runs.")
    ],
    path: Annotated[Path, typer.Argument(help="What to write: a file that ends in .onnx or .pt2 (torch.export).")],
    batch: Annotated[int, typer.Option(min=1, help="How many streams run in step.")] = 1,
) -> None:
    """Write the step (x, states) -> (y, states) of a model, weights frozen, complex states as pairs of real numbers.

    Examples:

      stablessm export runs/my-layer step.onnx

      stablessm export my_package.models:build step.pt2 --batch 4
    """
    from stablessm import export_step
    from stablessm.cli import model_source

    with refusing(BackendUnavailableError, OSError, cannot=f"export {model}"):
        if path.suffix not in FORMATS:
            raise ArgumentError("PATH", f"a file that ends in {' or '.join(FORMATS)}", str(path))
        loaded, _ = model_source.load_model(model)
        kind: Any = FORMATS[path.suffix]
        export_step(loaded, path, format=kind, batch=batch)
    typer.echo(f"written: {path}")
