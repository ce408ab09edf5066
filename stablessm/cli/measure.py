"""``stablessm measure``: measures how long a model remembers, and how close it is to instability."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from stablessm._errors import ArgumentError, NumericalError, quoted
from stablessm.cli import comparison, model_source, tables
from stablessm.cli.options import TRUST_REMOTE_CODE, argument, grouped, option, refusing, slug
from stablessm.cli.output import note


@final
@dataclass(frozen=True)
class MemoryOptions:
    """The command-line options that set the arguments of ``memory_function``."""

    horizon: int = option(256, "Number of steps over which memory is measured.", min=1)
    d_input: int | None = option(None, "Number of input channels (default: read from the model).", min=1)
    dt: float | None = option(None, "Time between samples (default: the model's dt, or 1).")
    unit: str | None = option(None, "Name of the time unit in the plots and the table.")
    norm: str = option(
        "ball",
        "Normalization of M(t): ball (largest response to inputs of norm up to --bound, divided by --bound), "
        "plus_one (response / (norm of the input + 1)) or unit (inputs of norm 1).",
        words=("ball", "plus_one", "unit"),
    )
    bound: float = option(1.0, "Largest norm of constant inputs (times 100 for plus_one).")
    output: str | None = option(
        None, "Output of a Hugging Face model to measure: logits or hidden.", words=("logits", "hidden")
    )
    samples: int = option(64, "Number of random inputs with which the search begins.", min=1)
    ascent: int = option(8, "Number of gradient-ascent steps after the random inputs.", min=0)
    seed: int = option(0, "Seed of the random inputs.", min=0)


@grouped
def measure(
    model: list[str] = argument(
        ...,
        "Folder saved by stablessm, Hugging Face folder or name, or module:factory (executes the module). "
        "Several models, or all models in a folder of checkpoints, are compared.",
    ),
    *,
    memory: MemoryOptions,
    words: str | None = option(
        None,
        "Comma-separated words, for a Hugging Face model (default: inputs in embedding space). Each word in "
        "turn is the constant input. A word of several tokens is represented by its last token.",
    ),
    out: Path | None = option(None, "Output folder for the record and the plots (default: a folder in runs/measure)."),
    trust_remote_code: bool = TRUST_REMOTE_CODE,
) -> dict[str, Any]:
    """Measure how long a model remembers.

    The memory function M(t) is how fast the output still changes a time t after a constant input starts, for the input
    that makes this change largest. Random inputs and then gradient ascent search for this input. The result states how
    M(t) decays, its time scales, and the distance to instability (the stability radius). Several models, or the
    checkpoints of a training run, are measured with the same options and drawn on one page.

    Examples:

      stablessm measure runs/my-layer --horizon 2000 --unit s
      stablessm measure state-spaces/mamba-130m-hf --words good,bad
      stablessm measure my_package.models:build --d-input 3 --dt 0.01
      stablessm measure runs/small runs/large --horizon 2000
      stablessm measure my-training     its folders checkpoint-100, checkpoint-200
    """
    started = time.perf_counter()
    name = slug("-".join(model), "model")[:80]
    folder = out or Path("runs") / "measure" / name
    curves: dict[str, Any] = {}
    facts: dict[str, dict[str, Any]] = {}
    for given in model:
        with refusing(NumericalError, cannot=f"measure {given}"):
            if folder.exists() and not folder.is_dir():
                raise ArgumentError("--out", "a folder", f"{folder}, a file")
            sources = model_source.checkpoints(given)
            for source in (source for source in sources if source not in curves):
                try:
                    curves[source], facts[source], config = _measured(source, memory, words, trust_remote_code)
                except (ArgumentError, NumericalError) as error:
                    if len(sources) == 1 or (isinstance(error, ArgumentError) and error.argument != "MODEL"):
                        raise
                    note(f"not measured: {source}: {error}", err=True)  # a checkpoint that is being written, or NaN
            if not curves.keys() & set(sources):
                raise ArgumentError("MODEL", "a folder with at least one complete checkpoint", given)
    return _told(curves, facts, config, folder, started)


def _told(
    curves: dict[str, Any], facts: dict[str, dict[str, Any]], config: dict[str, Any], folder: Path, started: float
) -> dict[str, Any]:
    """Print a table of the results for one or more models, write the files to ``folder``, and return the results.

    Args:
        curves: Memory function of each model, by the name of the model.
        facts: Measured values of each model, by the name of the model.
        config: Settings of the measurement, for the record.
        folder: Output folder.
        started: Time at which the command started, for the record.
    """
    from stablessm import record

    if len(curves) == 1:
        ((source, curve),) = curves.items()
        tables.show((), facts[source].items(), title=f"memory of {source} ({config['source']})")
        _save(curve, folder)
        record.write_record(folder, started=started, kind="measure", config=config, results=facts[source])
        note(f"written: {folder}/record.json, memory.npz, memory.png, memory.svg, memory.html")
        return {"folder": folder, **facts[source]}
    comparison.show(facts)
    files = comparison.save(curves, folder)
    config = {**config, "model": list(curves), "source": "several"}
    record.write_record(folder, started=started, kind="measure", config=config, results={"models": facts})
    note(f"written: {folder}/{', '.join(files[:4])} and {len(curves)} .npz files")
    return {"folder": folder, "models": facts}


def _measured(
    source: str, memory: MemoryOptions, words: str | None, trust_remote_code: bool
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Measure one model; return its memory function, a summary, and the settings of the measurement."""
    from stablessm import memory_function

    config: dict[str, Any] = vars(memory)
    loaded, kind = model_source.load_model(source, trust_remote_code=trust_remote_code)
    names: dict[str, str] = {}
    if words is not None:
        tokenizer = model_source.load_tokenizer(source, "--words", trust_remote_code=trust_remote_code)
        names = _tokens(tokenizer, words)
        config = {**config, "tokens": [int(token) for token in names]}
    curve = memory_function(loaded, **config)
    config = {"model": source, "source": kind, **config, "words": words, "trust_remote_code": trust_remote_code}
    return curve, _facts(loaded, curve, names), config


def _save(curve: Any, folder: Path) -> None:
    """Write the values of the memory function, its picture in two formats and an interactive page to a folder."""
    from stablessm.cli import pictures

    curve.save(folder / "memory.npz")
    pictures.save(folder, curve.plot().figure, curve.plotly())


def _tokens(tokenizer: Any, words: str) -> dict[str, str]:
    """Return a dict from the id of the last token of each word to a text that names the word."""
    names: dict[str, str] = {}
    for word in (word.strip() for word in words.split(",")):
        ids = tokenizer.encode(word, add_special_tokens=False)
        if not ids:
            raise ArgumentError("--words", "words that the tokenizer knows, separated by commas", quoted(word))
        said = f"“{word}”" if len(ids) == 1 else f"the last of {len(ids)} tokens of “{word}”"
        token = str(ids[-1])
        names[token] = f"{names[token]}, {said}" if token in names else said
    return names


def _facts(model: Any, curve: Any, names: dict[str, str]) -> dict[str, Any]:
    from torch import nn

    from stablessm import stability_radius

    facts: dict[str, Any] = {"model": type(model).__name__}
    if isinstance(model, nn.Module):
        facts["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    facts |= {"measured up to": f"{curve.time[-1]:g} {curve.unit}", **_decay(curve)}
    facts["the supremum is"] = "exact" if curve.exact else "a lower bound"
    facts["measured by"] = curve.note
    for token, word in names.items():
        fit = curve.of(token).decay()
        facts[f"{word} (token {token})"] = f"{fit.kind}: {fit.reason}"
    if isinstance(model, nn.Module):
        try:
            facts["stability radius"] = stability_radius(model)
        except ArgumentError:
            facts["stability radius"] = "unknown: the model has no diagonal or dense recurrence of stablessm"
        except NumericalError as error:
            facts["stability radius"] = f"unknown: {error}"
    return facts


def _decay(curve: Any) -> dict[str, Any]:
    fit = curve.decay()
    facts: dict[str, Any] = {"decay": fit.kind, "reason": fit.reason}
    if fit.interval is not None:
        values = {"rate": fit.rate, "exponent": fit.exponent, "stretch": fit.stretch}
        name, value = next((name, value) for name, value in values.items() if value is not None)
        facts[f"{name} (95 % interval)"] = f"{value:.4g} ({fit.interval[0]:.4g} to {fit.interval[1]:.4g})"
    for share in (0.1, 0.01):
        facts[f"last time above {share:.0%}"] = curve.memory_time(share)
    facts["effective length"] = curve.effective_length()
    facts["half-life"] = curve.half_life()
    return facts
