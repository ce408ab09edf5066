"""``stablessm export``: writes a model to a file that runs without stablessm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stablessm._errors import ArgumentError, BackendUnavailableError
from stablessm.cli.options import argument, option, refusing
from stablessm.cli.output import note, waiting

FORMATS = (".onnx", ".pt2")


def export(
    model: str = argument(..., "Folder saved by stablessm, or module:factory (executes the module)."),
    path: Path = argument(..., "File to write; its name ends in .onnx or .pt2 (torch.export)."),
    kind: str = option(
        "step",
        "What one call computes: step (one sample) or sequence (whole sequences of any length).",
        words=("step", "sequence"),
    ),
    batch_size: int | None = option(
        None, "Fixed batch size; requires --kind step (default: any batch size).", "--batch-size", "--batch", min=1
    ),
) -> dict[str, Any]:
    """Export a model to ONNX or torch.export.

    The file maps (x, states) to (y, states) and runs without stablessm. The weights are frozen, and complex states
    become pairs of real numbers. The states that one call returns are the states of the next call. A model that was
    trained on standardized data takes standardized inputs, x = (value - mean) / deviation, and forecasts standardized
    values. Means and deviations are stored in the file as JSON under the name standardization: in the metadata of ONNX,
    or as an extra file of torch.export.

    Examples:

      stablessm export runs/my-layer step.onnx
      stablessm export runs/my-layer sequence.onnx --kind sequence
      stablessm export runs/fit/my-kernel step.onnx
      stablessm export my_package.models:build step.pt2 --batch-size 4
    """
    import stablessm
    from stablessm.cli import model_source

    with refusing(BackendUnavailableError, OSError, cannot=f"export {model}"):
        if path.suffix not in FORMATS:
            raise ArgumentError("PATH", f"a file that ends in {' or '.join(FORMATS)}", str(path))
        if kind == "sequence" and batch_size is not None:
            expected = "no value, since --kind sequence takes any number of sequences"
            raise ArgumentError("--batch-size", expected, batch_size)
        loaded, _ = model_source.load_model(model)
        run = Path(model).parent if Path(model).name == "model" else Path(model)
        scale = standardization(run) if (run / "training.json").is_file() else {}
        texts = {"standardization": json.dumps(scale)} if scale else {}
        with waiting(f"exporting {model}, which can take a minute"):
            if kind == "sequence":
                stablessm.export_sequence(loaded, path, metadata=texts)
            else:
                stablessm.export_step(loaded, path, batch=batch_size, metadata=texts)
    note(f"written: {path}")
    if scale:
        what = " and ".join(scale)
        note(f"{what} are standardized: (value - mean) / deviation, with the numbers stored in {path}", err=True)
    return {"written": path, "standardization": scale or None}


def standardization(run: Path) -> dict[str, Any]:
    """Return the means and standard deviations by which the data of a training run were standardized, for the inputs
    and for the outputs of a forecast. The dict is empty if the data in the run folder ``run`` were not standardized.
    """
    from stablessm import training
    from stablessm.tasks.new_data import SeriesReader
    from stablessm.training.settings import task_of

    settings = training.settings_of(run)
    described = settings["task"]
    scale = described.get("scale")
    if {"window", "horizon"} <= set(described["options"]) and scale:
        reader = SeriesReader.of(described)
        outputs = {f"{name}+{step}": scale[name] for step in range(1, reader.horizon + 1) for name in reader.targets}
        return {"inputs": scale, "outputs": outputs}
    if scale is None and "task" in settings["origin"]:
        try:
            scale = getattr(task_of(settings), "scale", None)  # the description of an image task has no scale
        except ArgumentError as error:
            note(f"the inputs may be standardized, but the training data cannot be read ({error})", err=True)
    parts = {"inputs": scale, "outputs": described.get("target_scale")}
    return {part: found for part, found in parts.items() if found}
