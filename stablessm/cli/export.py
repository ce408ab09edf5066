"""``stablessm export``: one step of a model as a file that runs elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stablessm._errors import ArgumentError, BackendUnavailableError
from stablessm.cli.options import refusing
from stablessm.cli.output import note

FORMATS = {".onnx": "onnx", ".pt2": "torch"}


def export(
    model: Annotated[str, typer.Argument(help="Folder saved by stablessm, or package.module:factory (its code runs).")],
    path: Annotated[Path, typer.Argument(help="File to write; its name ends in .onnx or .pt2 (torch.export).")],
    batch_size: Annotated[
        int, typer.Option("--batch-size", "--batch", min=1, help="Number of independent streams in one step.")
    ] = 1,
) -> dict[str, Any]:
    """Export one step of a model to ONNX or torch.export.

    The file maps (x, states) to (y, states) and runs without stablessm. The weights are frozen, and complex states
    become pairs of real numbers.

    Examples:

      stablessm export runs/my-layer step.onnx
      stablessm export my_package.models:build step.pt2 --batch-size 4
    """
    from stablessm import export_step
    from stablessm.cli import model_source

    with refusing(BackendUnavailableError, OSError, cannot=f"export {model}"):
        if path.suffix not in FORMATS:
            raise ArgumentError("PATH", f"a file that ends in {' or '.join(FORMATS)}", str(path))
        loaded, _ = model_source.load_model(model)
        kind: Any = FORMATS[path.suffix]
        export_step(loaded, path, format=kind, batch=batch_size)
    note(f"written: {path}")
    return {"written": path}
