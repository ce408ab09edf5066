"""The table of tasks by name: create a task, list its options, or register a new task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from typing import Any, final

from stablessm._checked import checked
from stablessm._errors import ArgumentError, quoted, unknown_name
from stablessm._renamed import current_options
from stablessm.tasks import options as options_
from stablessm.tasks.base import Task
from stablessm.tasks.copying import CopyingOptions, SelectiveCopying
from stablessm.tasks.forecasting import ETTh1, ForecastingOptions
from stablessm.tasks.functional import Functional, FunctionalOptions
from stablessm.tasks.images import ImageOptions, SequentialImages
from stablessm.tasks.imdb import IMDB, IMDBOptions
from stablessm.tasks.options import Described, Options
from stablessm.tasks.own import Arrays, ArraysOptions
from stablessm.tasks.own_csv import Sequences, SequencesOptions, Series, SeriesOptions
from stablessm.tasks.recall import MultiQueryRecall, MultiQueryRecallOptions, Recall, RecallOptions
from stablessm.tasks.text import LanguageModeling, TextOptions


@final
@dataclass(frozen=True)
class Entry:
    """A registered task: its constructor, its options and a summary."""

    build: Callable[..., Task]
    """Constructor of the task, called with the options and the name as ``name=``."""
    options: type[Options]
    summary: str
    """Description of the task in one line."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults that replace those of the options dataclass."""


TASKS: dict[str, Entry] = {
    "functional": Entry(Functional, FunctionalOptions, "learn a target functional from its response to white noise"),
    "recall": Entry(Recall, RecallOptions, "associative recall, the form of StableSSM"),
    "multi-query-recall": Entry(MultiQueryRecall, MultiQueryRecallOptions, "several keys to recall, among fillers"),
    "selective-copying": Entry(SelectiveCopying, CopyingOptions, "copy the tokens that stood among fillers"),
    "mnist": Entry(SequentialImages, ImageOptions, "digits, one pixel per step"),
    "permuted-mnist": Entry(
        SequentialImages, ImageOptions, "digits, their pixels in a fixed random order", {"permutation_seed": 0}
    ),
    "cifar10-gray": Entry(partial(SequentialImages, data="cifar10-gray"), ImageOptions, "gray photographs"),
    "cifar10": Entry(partial(SequentialImages, data="cifar10"), ImageOptions, "color photographs"),
    "imdb": Entry(IMDB, IMDBOptions, "movie reviews, positive or negative"),
    "lm": Entry(LanguageModeling, TextOptions, "a text: predict the next character, byte, byte pair or word"),
    "etth1": Entry(ETTh1, ForecastingOptions, "forecast a transformer's load and temperature"),
    "arrays": Entry(Arrays, ArraysOptions, "your arrays, in memory or in .npy and .npz files"),
    "series": Entry(Series, SeriesOptions, "your CSV file, one series to forecast"),
    "sequences": Entry(Sequences, SequencesOptions, "your CSV file, many labeled sequences"),
}
"""Every task by name; the contract tests run over this table."""

NAMES: tuple[str, ...] = tuple(TASKS)
"""Names of the tasks of the library; ``register`` adds others to ``TASKS``."""


@checked
def get(name: str, **options: Any) -> Task:
    """Create the task with the given name; options that are not given have their defaults.

    >>> get("recall", length=40, vocabulary=20).inputs
    Inputs(kind='tokens', size=20, length=42)
    >>> get("recall", lenght=40)
    Traceback (most recent call last):
    ...
    stablessm._errors.ArgumentError: lenght: expected one of the options train_examples, valid_examples, \
test_examples, fresh, data_seed, length, vocabulary, train_on for task 'recall', got 'lenght' (did you mean \
'length'?)
    """
    entry, options = _entry(name, options)
    given = {**entry.defaults, **options}
    for option in listing(name):
        if option.default is MISSING and option.name not in given:
            raise ArgumentError(option.name, f"{option.kind} for task {name!r}: {option.help}", "none")
    return entry.build(entry.options(**given), name=name)


@checked
def register(name: str, build: Callable[..., Task], options: type[Options], summary: str = "") -> None:
    """Register a task: ``get(name, **options)`` then returns ``build(options, name=name)``.

    Args:
        name: Name of the task, which must be new.
        build: Constructor of the task, usually a subclass of ``Task``.
        options: Dataclass of the options.
        summary: Description of the task in one line.
    """
    if not isinstance(name, str) or name in TASKS:
        raise ArgumentError("name", "a new name", quoted(name))
    if not callable(build) or not isinstance(options, type):
        raise ArgumentError("build, options", "a function and a class", f"{build!r}, {options!r}")
    TASKS[name] = Entry(build, options, summary)


@checked
def listing(name: str) -> tuple[Described, ...]:
    """Return the options of a task, with their types, defaults and help texts.

    >>> [(option.name, option.default) for option in listing("permuted-mnist")]
    [('valid', 0.1), ('permutation_seed', 0)]
    """
    entry, _ = _entry(name, {})
    return options_.listed(entry.options, entry.defaults)


@checked
def read_options(name: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """Convert options of a task from text, as on a command line, to their types, so that ``get`` accepts them.

    >>> read_options("recall", {"length": "131072", "fresh": "true"})
    {'length': 131072, 'fresh': True}
    """
    entry, texts = _entry(name, texts)
    return options_.read(entry.options, texts)


def _entry(name: str, given: Mapping[str, Any]) -> tuple[Entry, dict[str, Any]]:
    """Return the registered task with this name, and the given options with old names replaced by current names."""
    if name not in TASKS:
        raise unknown_name("task", TASKS, name)
    given = current_options(TASKS[name].options, given, f"task {name!r}")
    known = [field.name for field in fields(TASKS[name].options)]
    for option in given:
        if option not in known:
            raise unknown_name(option, known, option, f"one of the options {', '.join(known)} for task {name!r}")
    return TASKS[name], given
