"""What commands share: options by group, options as KEY=VALUE, and how a command says that it cannot."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from stablessm._errors import ArgumentError, printable

Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Runs = Annotated[Path, typer.Option(help="Folder for run folders.")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with a hub model.")]
RESUME = "interrupted; run the same command again to resume"


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the fields of each parameter that is a dataclass as parameters of their own.

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
    given = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: each.annotation for name, each in given.parameters.items() if is_dataclass(each.annotation)
    }
    fields = {name: inspect.signature(group, eval_str=True).parameters for name, group in groups.items()}

    def flat(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field: values.pop(field) for field in fields[name] if field in values})
        command(**values)

    parameters = [
        part.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in given.parameters.items()
        for part in fields.get(name, {name: each}).values()
    ]
    flat.__name__, flat.__doc__ = command.__name__, command.__doc__
    flat.__signature__ = given.replace(parameters=parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {each.name: each.annotation for each in parameters}
    return flat


def pairs(flag: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Options given as KEY=VALUE."""
    found = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ArgumentError(flag, "KEY=VALUE", repr(text))
        found[key.strip().replace("-", "_")] = value.strip()
    return found


@contextmanager
def refusing(*kinds: type[Exception], cannot: str | None = None, interrupted: str | None = None) -> Iterator[None]:
    """Exit with 2 and a line that says what was wrong, and after Ctrl-C with 130 and a line that says what now.

    Args:
        kinds: Errors that are told; an ArgumentError always is.
        cannot: What could not be done, before the error's message.
        interrupted: What to say after Ctrl-C.
    """
    told: tuple[type[Exception], ...] = (ArgumentError, *kinds)
    try:
        yield
    except told as error:
        typer.secho(printable(str(error) if cannot is None else f"cannot {cannot}: {error}"), fg="red", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        if interrupted is None:
            raise
        typer.echo(interrupted)
        raise typer.Exit(130) from None


def slug(name: str, otherwise: str) -> str:
    """A name for a folder.

    >>> slug("exp(-t/50)*cos(t)", "kernel"), slug("../runs/load", "model"), slug("???", "model")
    ('exp-t-50-cos-t', 'runs-load', 'model')
    """
    kept = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    return "-".join(filter(None, kept.split("-"))).strip("-.") or otherwise
