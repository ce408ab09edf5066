"""The command ``stablessm``, which combines the commands of this package."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stablessm._errors import ArgumentError, printable
from stablessm._optional import import_failure
from stablessm.cli import (
    bench,
    check,
    demo,
    env,
    eval,
    export,
    fit,
    generate,
    measure,
    predict,
    report,
    run,
    search,
    status,
    train,
)
from stablessm.cli import list as list_
from stablessm.cli.options import in_options
from stablessm.cli.output import help_text, with_output


class Commands(TyperGroup):
    """The command group ``stablessm``, which prints expected errors as one line instead of a traceback.

    Such errors are a missing package, a file that cannot be read, or a wrong argument; the line says what to do. The
    exit status is 1 for a file that could not be read or written, otherwise 2.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the user named; print expected errors as one line."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning  # type: ignore[assignment]  # it needs the message alone
                return super().invoke(ctx)
        except (typer.Exit, BrokenPipeError):  # the command has printed its error; or nothing reads its output
            raise
        except Exception as error:
            package = import_failure(error)  # first: a package whose library does not load raises an OSError
            if package is None and not isinstance(error, ArgumentError | OSError):
                raise
            typer.secho(printable(package or in_options(error)), fg="red", err=True)
            raise typer.Exit(1 if package is None and isinstance(error, OSError) else 2) from error


def _show_warning(message: Warning | str, *_: Any) -> None:
    typer.secho(f"warning: {printable(str(message))}", fg="yellow", err=True)


app = typer.Typer(
    name="stablessm",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, Any] = {
    "env": env.env,
    "demo": demo.demo,
    "measure": measure.measure,
    "check": check.check,
    "train": train.train,
    "eval": eval.evaluate,
    "predict": predict.predict,
    "generate": generate.generate,
    "fit": fit.fit,
    "export": export.export,
    "list": list_.list_experiments,
    "run": run.run,
    "status": status.status,
    "search": search.search,
    "report": report.report,
    "bench": bench.bench,
}
for _name, _command in COMMANDS.items():
    app.command(_name, help=help_text(_command))(with_output(_command))


def _version(value: bool) -> None:
    if value:
        from stablessm import __version__, _provenance

        typer.echo(f"{__version__} (commit {_provenance.commit() or 'unknown'})")
        raise typer.Exit


def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version and the commit, and stop."),
    ] = False,
) -> None:
    """Measure and train sequence models with long memory; reproduce the papers.

    Examples:

      stablessm env --check             installed versions; tries every scan
      stablessm demo                    train and compare four models (2 min)
      stablessm measure my_package.models:build --d-input 3 --horizon 1000
      stablessm check state-spaces/mamba-130m-hf    is its state right?
      stablessm train --data load.csv --target temperature --out runs/load
      stablessm eval runs/load
      stablessm predict runs/load --out forecast.csv
      stablessm measure runs/load
      stablessm train lm -o text=mine.txt --model lm-small --out runs/mine
      stablessm generate runs/mine "Once upon a time"
      stablessm fit "1/(1+t)**1.1" --horizon 1000 --tol 1e-6
      stablessm export runs/my-layer step.onnx
      stablessm list                    experiments, and what they found
      stablessm run ia-fig1             one experiment, in seconds
      stablessm report --open           all runs as an HTML page
      stablessm run st-fig1 --jobs 2    two processes; also --on ray or slurm
      stablessm status                  progress of the runs
      stablessm search recall --over lr=log:1e-4:1e-1 --trials 20
      stablessm bench scan              speed compared with other packages

    Every command has --json (the result as JSON), --quiet (no progress and no notes) and -h.

    Exit codes:

      0    success
      1    the computation failed: a training run diverged, no sum of exponentials
           reached the tolerance, a state is wrong, a job failed, or the disk
           failed (full, no permission)
      2    the command cannot be carried out: a wrong argument or option, a
           damaged file, or a package that is not installed
      130  interrupted with Ctrl-C; 143 by SIGTERM (the same command resumes)
    """


app.callback(help=help_text(main))(main)
