"""Looks up experiments by id. The experiments of a paper are imported only when one of them is requested."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from stablessm import _current_folder
from stablessm._errors import ArgumentError, unknown_name
from stablessm.experiments.frame import Experiment
from stablessm.experiments.listing import GROUP as GROUP
from stablessm.experiments.listing import IDS as IDS
from stablessm.experiments.listing import ids as ids


def get(id: str) -> Experiment[Any]:
    """Return an experiment by its id. The id belongs to an experiment of this package or of an installed package, or it
    has the form ``my_package.module:NAME``.

    >>> get("ia-fig1").source
    'IAT, figure 1'
    >>> get("stablessm.experiments.demo.experiment:EXPERIMENT").id
    'demo'
    """
    if ":" in id:
        module, _, name = id.partition(":")
        _current_folder.use()
        return _own(id, lambda: getattr(import_module(module), name))
    if id in IDS:
        return next(experiment for experiment in _of_paper(id.partition("-")[0]) if experiment.id == id)
    for entry in entry_points(group=GROUP, name=id):
        return _own(f"{id} = {entry.value}", entry.load)
    raise unknown_name("ID", ids(), id, "an id that stablessm list shows, or module:NAME")


def _of_paper(paper: str) -> tuple[Experiment[Any], ...]:
    """Import and return the experiments of one paper, such as ``ia``. The experiments of the other papers are not
    imported, because importing all of them takes seconds.
    """
    if paper == "ia":
        from stablessm.experiments.iat.index import EXPERIMENTS
    elif paper == "su":
        from stablessm.experiments.ssm_ua.index import EXPERIMENTS
    elif paper == "lr":
        from stablessm.experiments.lru_ua.index import EXPERIMENTS
    elif paper == "st":
        from stablessm.experiments.stable_ssm.index import EXPERIMENTS
    else:
        from stablessm.experiments.beyond.index import EXPERIMENTS
    return EXPERIMENTS


def _own(reference: str, load: Callable[[], Any]) -> Experiment[Any]:
    try:
        found = load()
    except (ImportError, AttributeError) as error:
        raise ArgumentError("ID", "module:NAME, both of which exist", f"{reference!r} ({error})") from error
    if not isinstance(found, Experiment):
        raise ArgumentError("ID", "module:NAME of an Experiment", f"{reference!r}, a {type(found).__name__}")
    return found
