"""``stablessm export``: a model as a file that runs elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stablessm._arguments import one_of
from stablessm._errors import ArgumentError, BackendUnavailableError
from stablessm.cli.options import refusing
from stablessm.cli.output import note, waiting

FORMATS = (".onnx", ".pt2")


def export(
    model: Annotated[str, typer.Argument(help="Folder saved by stablessm, or package.module:factory (its code runs).")],
    path: Annotated[Path, typer.Argument(help="File to write; its name ends in .onnx or .pt2 (torch.export).")],
    kind: Annotated[
        str,
        typer.Option(help="What one call computes: step (one sample) or sequence (whole sequences of any length)."),
    ] = "step",
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size", "--batch", min=1, help="Fixed number of streams, with --kind step (default: any number)."
        ),
    ] = None,
) -> dict[str, Any]:
    """Export a step or whole sequences to ONNX or torch.export.

    The file maps (x, states) to (y, states) and runs without stablessm. The weights are frozen, and complex states
    become pairs of real numbers. The states that one call returns are the states of the next call. A model that was
    trained on standardized data takes standardized inputs, x = (value - mean) / deviation, and forecasts standardized
    values; means and deviations are in training.json of the run, under task and scale.

    Examples:

      stablessm export runs/my-layer step.onnx
      stablessm export runs/my-layer sequence.onnx --kind sequence
      stablessm export my_package.models:build step.pt2 --batch-size 4
    """
    import stablessm
    from stablessm.cli import model_source

    with refusing(BackendUnavailableError, OSError, cannot=f"export {model}"):
        if path.suffix not in FORMATS:
            raise ArgumentError("PATH", f"a file that ends in {' or '.join(FORMATS)}", str(path))
        one_of("--kind", kind, ("step", "sequence"))
        if kind == "sequence" and batch_size is not None:
            expected = "no value, since --kind sequence takes any number of sequences"
            raise ArgumentError("--batch-size", expected, batch_size)
        loaded, _ = model_source.load_model(model)
        run = Path(model).parent if Path(model).name == "model" else Path(model)
        task = stablessm.training.settings_of(run)["task"] if (run / "training.json").is_file() else {}
        with waiting(f"exporting {model}, which can take a minute"):
            if kind == "sequence":
                stablessm.export_sequence(loaded, path)
            else:
                stablessm.export_step(loaded, path, batch=batch_size)
    note(f"written: {path}")
    if task.get("scale"):
        what = f"{'inputs and outputs' if 'horizon' in task['options'] else 'inputs'} are standardized"
        note(f"{what}: x = (value - mean) / deviation, with task.scale in {run / 'training.json'}", err=True)
    return {"written": path}
