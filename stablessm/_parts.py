"""What is shared by several, in parts of nearly one size."""

from __future__ import annotations


def nth_part(count: int, index: int, parts: int) -> slice:
    """Part ``index`` of so many things in ``parts`` parts; the first ones are larger by one where they must.

    >>> [nth_part(10, index, 3) for index in range(3)]
    [slice(0, 4, None), slice(4, 7, None), slice(7, 10, None)]
    """
    least, more = divmod(count, parts)
    start = index * least + min(index, more)
    return slice(start, start + least + (index < more))
