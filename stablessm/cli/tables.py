"""Prints tables on the console."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stablessm._errors import printable


def show(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table. Text is printed unchanged, except that control characters are printed as codes.

    Args:
        columns: Headings; empty for a table without headings.
        rows: Cells; floating-point numbers are printed with four digits.
        title: Line above the table.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Text, because rich reads square brackets and :names: in plain strings as markup
    heading = None if title is None else Text(printable(title))
    table = Table(title=heading, title_justify="left", show_header=bool(columns))
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    for row in rows:
        table.add_row(*(Text(f"{cell:.4g}" if isinstance(cell, float) else printable(str(cell))) for cell in row))
    Console().print(table)
