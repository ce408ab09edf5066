"""``stablessm``: the commands, put together."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stablessm._errors import ArgumentError, printable
from stablessm._optional import import_failure
from stablessm.cli import (
    bench,
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


class Commands(TyperGroup):
    """The commands.

    A command that fails because a package, a file or a disk does ends with a line that says what to do: with 2, or
    with 1 if a file could not be read or written.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning  # type: ignore[assignment]  # it needs the message alone
                return super().invoke(ctx)
        except (typer.Exit, BrokenPipeError):  # the command has said why; nobody reads on
            raise
        except Exception as error:
            remedy = str(error) if isinstance(error, ArgumentError | OSError) else import_failure(error)
            if remedy is None:
                raise
            typer.secho(printable(remedy), fg="red", err=True)
            raise typer.Exit(1 if isinstance(error, OSError) else 2) from error


def _show_warning(message: Warning | str, *_: Any) -> None:
    typer.secho(f"warning: {printable(str(message))}", fg="yellow", err=True)


app = typer.Typer(name="stablessm", cls=Commands, no_args_is_help=True, add_completion=False, rich_markup_mode=None)
app.command("env")(env.env)
app.command("demo")(demo.demo)
app.command("measure")(measure.measure)
app.command("train")(train.train)
app.command("eval")(eval.evaluate)
app.command("predict")(predict.predict)
app.command("generate")(generate.generate)
app.command("fit")(fit.fit)
app.command("export")(export.export)
app.command("list")(run.list_experiments)
app.command("run")(run.run)
app.command("status")(status.status)
app.command("search")(search.search)
app.command("report")(report.report)
app.command("bench")(bench.bench)


def _version(value: bool) -> None:
    if value:
        from stablessm import __version__, _provenance

        typer.echo(f"{__version__} (commit {_provenance.commit() or 'unknown'})")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print version and commit, and stop."),
    ] = False,
) -> None:
    """Sequence models with long memory: measure it, build it stable, reproduce it.

    Examples:

      stablessm env               what is installed here, and which scan runs

      stablessm env --json        the same, for a bug report

      stablessm demo              train, measure and compare a direct and three stable models (two minutes)

      stablessm demo --out runs/demo

      stablessm measure my_package.models:build --d-input 3 --horizon 1000

      stablessm train --data load.csv --target temperature --out runs/load && stablessm measure runs/load

      stablessm eval runs/load

      stablessm predict runs/load --out forecast.csv

      stablessm train lm -o text=mine.txt --model lm-small --out runs/mine && stablessm generate runs/mine "Once"

      stablessm fit "1/(1+t)**1.1" --horizon 1000 --tol 1e-6

      stablessm export runs/my-layer step.onnx

      stablessm run ia-fig1 && stablessm report

      stablessm run st-fig1 --jobs 2    side by side; also --on ray, --on slurm

      stablessm status            what is done, running, failed, left

      stablessm search recall --over lr=log:1e-4:1e-1 --trials 20

      stablessm bench scan        speed beside the peers that are installed
    """
