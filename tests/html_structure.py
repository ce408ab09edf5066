"""The elements and words of a piece of HTML."""

from __future__ import annotations

from html.parser import HTMLParser


class Structure(HTMLParser):
    """Which elements open, the text outside scripts, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "link"):
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, text: str) -> None:
        if not {"script", "style"} & set(self.stack):
            self.words.append(text)

    def ids(self) -> list[str]:
        return [found["id"] or "" for _, found in self.tags if "id" in found]
