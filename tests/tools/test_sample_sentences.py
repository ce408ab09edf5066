"""The texts that a reader judges: all kinds are found, and a seed draws the same texts again."""

from __future__ import annotations

from pathlib import Path

import sample_sentences as sample

ROOT = Path(__file__).parents[2]


def test_every_kind_is_found() -> None:
    assert any("linear_scan" in where for where, _ in sample.docstrings(ROOT, "stablessm/scan"))
    found = dict(sample.help_texts())
    assert "Learning rate." in found["stablessm train --lr"]
    assert "stablessm demo --smoke" not in found  # an old name, which the help does not show
    assert len(found) > 100


def test_a_docstring_comes_with_its_signature(tmp_path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "file.py").write_text(
        '"""A module."""\nclass Box(Base):\n    """A box."""\n    async def open(self, *, by: str = "key") -> bool:\n'
        '        """Open the box.\n\n        Args:\n            by: What opens it.\n        """\n'
        "    def shut(self): pass\n",
        encoding="utf-8",
    )
    assert list(sample.docstrings(tmp_path, "package")) == [
        ("package/file.py:1 module", "A module."),
        ("package/file.py:2 class Box(Base)", "A box."),
        (
            "package/file.py:4 def Box.open(self, *, by: str='key') -> bool",
            "Open the box.\n\nArgs:\n    by: What opens it.",
        ),
    ]


def test_sentences_are_prose(tmp_path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(
        "# A heading of many words\n\nOne sentence\nover two lines. And a second one.\n\n| a | table row with words |\n"
        "\n```python\ncode = that_is(not_a, sentence)\n```\n\n- A point of a list.\n- Another point of it.\n",
        encoding="utf-8",
    )
    (tmp_path / "README.md").touch()
    assert [text for _, text in sample.doc_sentences(tmp_path)] == [
        "One sentence over two lines.", "And a second one.", "A point of a list.", "Another point of it.",
    ]  # fmt: skip


def test_a_seed_draws_the_same_texts() -> None:
    kinds = {"words": ([("here", word) for word in "abcdefghij"], 4)}
    assert sample.draw(kinds, 3) == sample.draw(kinds, 3)
    assert sample.draw(kinds, 3) != sample.draw(kinds, 4)
    assert len({text for _, text in sample.draw(kinds, 3)["words"]}) == 4
