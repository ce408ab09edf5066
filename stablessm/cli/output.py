"""Parts that all commands share: the options ``--json`` and ``--quiet``, and the layout of help texts."""

from __future__ import annotations

import inspect
import io
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, TextIO

import typer
from typer.models import ArgumentInfo

from stablessm import _progress
from stablessm._errors import printable
from stablessm.cli.options import of_command, option, parameters, standing_for


@dataclass(frozen=True)
class _Shared:
    as_json: bool = option(False, "Print the result as JSON, and nothing else, on standard output.", "--json")
    quiet: bool = option(False, "Print no progress, notes or warnings.", "--quiet", "-q")


_SHARED = parameters(_Shared)


class Unsuccessful(typer.Exit):
    """The exception with which a command reports that it failed but has a result: the result is printed, and the exit
    status is 1.
    """

    def __init__(self, result: Any) -> None:
        super().__init__(1)
        self.result = result


def with_output(command: Callable[..., Any]) -> Callable[..., None]:
    """Return the command with two added options: ``--json`` and ``--quiet``.

    The command prints its result as text for people, and returns its result as plain data. With ``--json``, these data
    are printed as JSON instead of the text.
    """
    given = parameters(command)
    known = {each.name: _typed_name(each) for each in given}

    def run(**values: Any) -> None:
        of_command.clear()
        of_command.update(known)
        as_json, quiet = (values.pop(each.name) for each in _SHARED)
        with _silence() if quiet else warnings.catch_warnings():
            if not as_json:
                command(**values)
                return
            code, text = 0, io.StringIO()
            try:
                with redirect_stdout(text):
                    result = command(**values)
            except Unsuccessful as end:
                code, result = end.exit_code, end.result
            from stablessm.record import plain

            typer.echo(json.dumps(plain(result), indent=2))
        if code:
            raise typer.Exit(code)

    return standing_for(run, command, [*given, *_SHARED])


def _typed_name(parameter: inspect.Parameter) -> str:
    """Return the name of a parameter that users type or read in the help: of an option, such as ``--batch-size``, or of
    an argument in capitals, such as ``FOLDER``.
    """
    (info,) = parameter.annotation.__metadata__
    return str(info.metavar if isinstance(info, ArgumentInfo) else info.default.partition("/")[0])


def note(text: str, *, err: bool = False) -> None:
    """Unless ``--quiet`` is given, print a line that is not part of the result, such as which files were written."""
    if not _progress.quiet:
        typer.echo(printable(text), err=err)


def waiting(text: str) -> AbstractContextManager[Any]:
    """Return a context that shows a text with a spinner in a terminal, unless ``--quiet`` is given."""
    from rich.console import Console
    from rich.text import Text

    return Console(stderr=True, quiet=_progress.quiet).status(Text(printable(text)))


def printed() -> str:
    """Return the text that the command would have printed so far without ``--json``; an empty string if ``--json`` is
    not given.
    """
    return sys.stdout.getvalue() if isinstance(sys.stdout, io.StringIO) else ""


def help_text(command: Callable[..., Any]) -> str:
    r"""Return the docstring of a command as help text in which indented paragraphs keep their line breaks.

    >>> def hello():
    ...     '''Say hello.
    ...
    ...     Example:
    ...
    ...       stablessm hello
    ...     '''
    >>> help_text(hello)
    'Say hello.\n\nExample:\n\n\x08\n  stablessm hello'
    """
    return re.sub(r"\n\n(?=  )", "\n\n\b\n", inspect.getdoc(command) or "").rstrip()


class _NoTerminal:
    """A wrapper of a stream whose ``isatty`` returns False, so that libraries write errors to the stream but no
    progress bars.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return False


@contextmanager
def _silence() -> Iterator[None]:
    """Return a context in which a command prints only its results and errors, without warnings and progress bars."""
    before, _progress.quiet = _progress.quiet, True
    try:
        with warnings.catch_warnings(), redirect_stderr(_NoTerminal(sys.stderr)):
            warnings.simplefilter("ignore")
            yield
    finally:
        _progress.quiet = before
