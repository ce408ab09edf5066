"""Generated parts of pages, which stand between two comments of HTML."""

from __future__ import annotations


def marks(name: str) -> tuple[str, str]:
    """Return the comments before and after the generated part of this name."""
    return f"<!-- {name}: ./dev pages -->", f"<!-- end of {name} -->"


def replaced(page: str, name: str, text: str) -> str:
    """Return the page with another text between the marks of this name.

    >>> replaced("1 <!-- a: ./dev pages -->old<!-- end of a --> 2", "a", "new")
    '1 <!-- a: ./dev pages -->new<!-- end of a --> 2'
    """
    begin, end = marks(name)
    if begin not in page or end not in page:
        raise ValueError(f"the page has no marks {begin} and {end}")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}{text}{end}{rest.partition(end)[2]}"
