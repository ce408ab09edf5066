"""``stablessm check``: checks that a model's outputs stay the same when its state is carried from part to part of a
sequence.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from stablessm import _progress
from stablessm._errors import ArgumentError, NumericalError, printable
from stablessm.cli import model_source
from stablessm.cli.options import TRUST_REMOTE_CODE, argument, option, refusing
from stablessm.cli.output import Unsuccessful


def check(
    model: str | None = argument(
        None,
        "Folder saved by stablessm, Hugging Face folder or name, or module:factory (executes the module).",
        show_default=False,
    ),
    *,
    family: list[str] | None = option(
        None, "Check a small random model of this family of the package transformers; repeatable."
    ),
    families: bool = option(False, "Check every recurrent or hybrid family of the package transformers."),
    cases: list[str] | None = option(None, "Case to check, such as chunks (default: all); repeatable.", "--case"),
    d_input: int | None = option(None, "Number of input channels (default: the model's).", min=1),
    length: int = option(24, "Number of steps of the random sequences.", min=12),
    batch_size: int = option(3, "Number of random sequences.", min=2),
    tol: float | None = option(None, "Tolerance, relative to the largest output (default: by dtype)."),
    seed: int = option(0, "Seed of the sequences and of the weights of --family.", min=0),
    trust_remote_code: bool = TRUST_REMOTE_CODE,
) -> dict[str, Any]:
    """Check that carrying the state does not change the outputs.

    The model runs on random sequences in one pass, and again step by step, in chunks, with padding, with one
    sequence per call, with packed sequences, from copied and saved states, in bfloat16, and by its method generate.
    For each case, the table shows whether the outputs are the same, the largest error, the first step with an error
    above the tolerance, and the first layer that differs. The exit code is 1 if a case fails.

    Examples:

      stablessm check runs/my-layer
      stablessm check state-spaces/mamba-130m-hf
      stablessm check my_package.models:build --d-input 3
      stablessm check --family mamba --family mamba2 --case chunks
      stablessm check --families --json
    """
    options: dict[str, Any] = {"cases": cases or None, "length": length, "batch": batch_size, "tol": tol, "seed": seed}
    given = [name for name, value in (("MODEL", model), ("--family", family), ("--families", families)) if value]
    with refusing(NumericalError, cannot="check"), _quiet_transformers():
        if len(given) != 1:
            raise ArgumentError("MODEL", "one of MODEL, --family and --families", " and ".join(given) or "none of them")
        if model is None:
            result = _families(family, options)
        else:
            from stablessm import check_state

            loaded, kind = model_source.load_model(model, trust_remote_code=trust_remote_code)
            report = check_state(loaded, d_input=d_input, **options)
            _show(f"{model} ({kind})", report)
            result = {"source": model, **report.as_dict()}
    if not result["passed"]:
        raise Unsuccessful(result)
    return result


def _families(names: list[str] | None, options: dict[str, Any]) -> dict[str, Any]:
    """Check a small model with random weights of each named family, or of every family if ``names`` is None.

    ``options`` are further arguments of :func:`stablessm.check_state`.
    """
    from stablessm import check_state
    from stablessm._optional import require
    from stablessm.instruments import families

    version = require("transformers", "--family").__version__
    reports: dict[str, Any] = {}
    with _progress.working("check", True) as tell:
        for name in names or families.names():
            try:
                reports[name] = check_state(
                    families.random_model(name, seed=options["seed"]), progress=False, **options
                )
            except Exception as error:
                if names is not None:
                    raise
                reports[name] = f"cannot be checked: {error}"  # the other families are still checked
            tell()
    found = {name: report for name, report in reports.items() if not isinstance(report, str)}
    for name, report in reports.items():
        if names is not None:
            _show(f"{name} (small random model, transformers {version})", report)
        else:
            typer.echo(f"{name}: {_summary(report)}")
    wrong = [name for name, report in found.items() if not report.passed]
    typer.echo(f"transformers {version}: {len(wrong)} of {len(reports)} families have a case that fails")
    return {
        "transformers": version,
        "passed": not wrong,
        "families": {name: report.as_dict() for name, report in found.items()},
        "errors": {name: report for name, report in reports.items() if name not in found},
    }


def _show(title: str, report: Any) -> None:
    typer.echo(printable(f"{title}: {report}"))


def _summary(report: Any) -> str:
    """Return one line of text about the check of one family of models of the package ``transformers``.

    The line lists the failed cases with their errors, or says ``right`` if no case failed. If the family could not be
    checked, ``report`` is the text of the error and is returned unchanged.
    """
    if isinstance(report, str):
        return report
    failed = [f"{case.name} ({_error(case)})" for case in report.cases if not case.passed]
    return ", ".join(failed) if failed else "right"


def _error(case: Any) -> str:
    return "raises an error" if case.error is None else f"{case.error:.0e}"


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Return a context without the log messages in which ``transformers`` recommends faster kernels."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
