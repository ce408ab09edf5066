"""``stablessm export``: the step of a model as a file that runs elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

FORMATS = {".onnx": "onnx", ".pt2": "torch"}


def export(
    model: Annotated[str, typer.Argument(help="A folder saved by stablessm, or package.module:factory.")],
    path: Annotated[Path, typer.Argument(help="What to write: a file that ends in .onnx or .pt2 (torch.export).")],
    batch: Annotated[int, typer.Option(min=1, help="How many streams run in step.")] = 1,
) -> None:
    """Write the step (x, states) -> (y, states) of a model, weights frozen, complex states as pairs of real numbers.

    Examples:

      stablessm export runs/my-layer step.onnx

      stablessm export my_package.models:build step.pt2 --batch 4
    """
    from stablessm import ArgumentError, BackendUnavailableError, export_step
    from stablessm.cli import model_source

    try:
        if path.suffix not in FORMATS:
            raise ArgumentError("PATH", f"a file that ends in {' or '.join(FORMATS)}", str(path))
        loaded, _ = model_source.load_model(model)
        kind: Any = FORMATS[path.suffix]
        export_step(loaded, path, format=kind, batch=batch)
    except (ArgumentError, BackendUnavailableError, OSError) as error:
        typer.secho(f"cannot export {model}: {error}", fg="red", err=True)
        raise typer.Exit(2) from error
    typer.echo(f"written: {path}")
