"""Builds HTML with function calls. All text is escaped unless it is an instance of :class:`Html`."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Any, final

_VOID = frozenset({"img", "br", "hr", "meta", "input"})


@final
class Html(str):
    """HTML markup. :func:`element` escapes plain strings but not instances of this class."""

    __slots__ = ()


def element(name: str, *children: object, **attributes: object) -> Html:
    """Return one HTML element. Keyword arguments are attributes: ``class_`` becomes class, ``data_label`` becomes
    data-label; None and False leave an attribute out.

    >>> element("a", "1 < 2", href="#claims", hidden=True, title=None)
    '<a href="#claims" hidden>1 &lt; 2</a>'
    >>> element("p", element("b", "bold"), " & ", ["x", None, 3])
    '<p><b>bold</b> &amp; x3</p>'
    """
    written = [f"<{name}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        written.append(f" {key}" if value is True else f' {key}="{html.escape(str(value))}"')
    written.append(">")
    if name not in _VOID:
        written += [join(children), f"</{name}>"]
    return Html("".join(written))


def join(children: object) -> Html:
    """Join nested lists of strings and elements into one piece of markup; strings are escaped."""
    if children is None:
        return Html("")
    if isinstance(children, Html):
        return children
    if isinstance(children, Iterable) and not isinstance(children, str):
        return Html("".join(join(child) for child in children))
    return Html(html.escape(str(children)))


def json_block(name: str, content: Any) -> Html:
    """Return a script element that contains ``content`` as JSON. The JSON is encoded so that no text in it can end the
    element. ``name`` is the id of the element.

    >>> json_block("data", {"title": "</script>"})
    '<script type="application/json" id="data">{"title":"\\\\u003c/script>"}</script>'
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{html.escape(name)}">{text}</script>')
