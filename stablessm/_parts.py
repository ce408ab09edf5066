"""Divides a number of items into parts of nearly equal size."""

from __future__ import annotations


def nth_part(count: int, index: int, parts: int) -> slice:
    """Return the slice of part number ``index``, if ``count`` items are divided into ``parts`` parts of
    nearly equal size.

    The first parts may be larger by one.

    >>> [nth_part(10, index, 3) for index in range(3)]
    [slice(0, 4, None), slice(4, 7, None), slice(7, 10, None)]
    """
    least, more = divmod(count, parts)
    start = index * least + min(index, more)
    return slice(start, start + least + (index < more))
