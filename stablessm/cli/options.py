"""Declarations of options, options that several commands share, groups of options, and error messages of commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from stablessm._errors import ArgumentError, printable, quoted, unknown_name


def choices(*names: str) -> Callable[[str], list[str]]:
    """Return a function for shell completion, which takes the typed text and returns the ``names`` that begin with this
    text.
    """

    def offer(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return offer


class Declared(NamedTuple):
    """An option or argument as it is declared: the default of a parameter, which :func:`parameters` translates."""

    default: Any
    names: tuple[str, ...]
    kind: Callable[..., Any]
    about: dict[str, Any]


def option(default: Any, help: str, *names: str, words: Sequence[str] = (), **about: Any) -> Any:
    """Declare an option of a command, as the default of a parameter or of a field of a group.

    Args:
        default: Default of the option; ``...`` if the option is required.
        help: One sentence for the help of the command.
        names: Names of the option (default: ``--`` and the name of the parameter).
        words: Words that are allowed (default: any). Shell completion offers them, and the value is checked before the
            command starts; the error suggests a similar word.
        about: Further arguments of ``typer.Option``, such as ``min=1``.
    """
    return Declared(default, names, typer.Option, {"help": help, **_one_of(words), **about})


def argument(default: Any, help: str, *, words: Sequence[str] = (), **about: Any) -> Any:
    """Declare an argument of a command, as :func:`option` declares an option."""
    return Declared(default, (), typer.Argument, {"help": help, **_one_of(words), **about})


def _one_of(words: Sequence[str]) -> dict[str, Any]:
    def known(parameter: typer.CallbackParam, value: str | None) -> str | None:
        if value is not None and value not in words:
            raise unknown_name(parameter.metavar or parameter.opts[0], words, value)
        return value

    return {"autocompletion": choices(*words), "callback": known} if words else {}


def parameters(command: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a command or group; declarations become annotations that typer reads."""
    return [_annotated(each) for each in inspect.signature(command, eval_str=True).parameters.values()]


def _annotated(parameter: inspect.Parameter) -> inspect.Parameter:
    if not isinstance(parameter.default, Declared):
        return parameter
    default, names, kind, about = parameter.default
    if kind is typer.Argument:
        info = kind(**{"metavar": parameter.name.upper(), **about})
    else:
        info = kind(*(names or [f"--{parameter.name.replace('_', '-')}"]), **about)
    default = parameter.empty if default is ... else default
    return parameter.replace(default=default, annotation=Annotated[parameter.annotation, info])


DEVICE = option(
    "auto", "Device: auto (a GPU if there is one), cpu or cuda.", autocompletion=choices("auto", "cpu", "cuda")
)
RUNS = option(Path("runs"), "Folder that contains the run folders.")
SIZES = ("smoke", "reduced", "paper", "large")
TRUST_REMOTE_CODE = option(False, "Run Python code from the model's Hugging Face repository.")
RESUME = "interrupted; run the same command again to resume"


def grouped(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with each dataclass parameter replaced by one option per field.

    >>> import dataclasses
    >>> @dataclasses.dataclass
    ... class Size:
    ...     width: int = 2
    ...     height: int = 3
    >>> @grouped
    ... def area(size: Size, times: int = 1) -> None:
    ...     print(times * size.width * size.height)
    >>> area(times=2, height=5), str(inspect.signature(area))
    20
    (None, '(*, width: int = 2, height: int = 3, times: int = 1) -> None')
    """
    given = parameters(command)
    groups: dict[str, Any] = {each.name: each.annotation for each in given if is_dataclass(each.annotation)}
    fields = {name: parameters(group) for name, group in groups.items()}

    def flat(**values: Any) -> Any:
        for name, group in groups.items():
            values[name] = group(**{each.name: values.pop(each.name) for each in fields[name] if each.name in values})
        return command(**values)

    return standing_for(flat, command, [field for each in given for field in fields.get(each.name, [each])])


def standing_for(
    function: Callable[..., Any], command: Callable[..., Any], parameters: Iterable[inspect.Parameter]
) -> Callable[..., Any]:
    """Return ``function`` with the name, the docstring and the return type of ``command``, and with these parameters as
    keyword-only parameters.
    """
    own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    function.__name__, function.__doc__ = command.__name__, command.__doc__
    function.__signature__ = inspect.signature(command, eval_str=True).replace(parameters=own)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in own}
    return function


def pairs(flag: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Parse the texts KEY=VALUE, which were given with the option ``flag``, into a dict."""
    found = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ArgumentError(flag, "KEY=VALUE", quoted(text))
        found[key.strip().replace("-", "_")] = value.strip()
    return found


_PYTHON = {"extend=True": "--extend", "'last-good'": "--last-good"}
"""Words of Python in errors, and the options that do the same."""
of_command: dict[str, str] = {}
"""Options of the present command, by the names of their parameters."""


def in_options(error: Exception) -> str:
    """Return the message of an error, in which the names of Python arguments are replaced by the options of the running
    command.
    """
    text = str(error)
    for word, option in _PYTHON.items():
        text = text.replace(word, option)
    if isinstance(error, ArgumentError) and error.argument in of_command:
        return of_command[error.argument] + text.removeprefix(error.argument)
    return text


@contextmanager
def refusing(*kinds: type[Exception], cannot: str | None = None, interrupted: str | None = None) -> Iterator[None]:
    """Return a context that prints expected errors as one line and exits with status 2 (1 for OSError, 130 for Ctrl-C).

    Args:
        kinds: Kinds of errors that are caught in addition to ArgumentError.
        cannot: What could not be done; printed before the error's message.
        interrupted: Line that is printed after Ctrl-C; by default, Ctrl-C is not caught.
    """
    expected: tuple[type[Exception], ...] = (ArgumentError, *kinds)
    try:
        yield
    except expected as error:
        told = in_options(error)
        typer.secho(printable(told if cannot is None else f"cannot {cannot}: {told}"), fg="red", err=True)
        raise typer.Exit(1 if isinstance(error, OSError) else 2) from error
    except KeyboardInterrupt:
        if interrupted is None:
            raise
        typer.echo(interrupted)
        raise typer.Exit(130) from None


def slug(name: str, otherwise: str) -> str:
    """Convert a text to a valid name for a file or folder, or return ``otherwise`` if nothing is left.

    >>> slug("exp(-t/50)*cos(t)", "kernel"), slug("../runs/load", "model"), slug("???", "model")
    ('exp-t-50-cos-t', 'runs-load', 'model')
    """
    kept = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    return "-".join(filter(None, kept.split("-"))).strip("-.") or otherwise
