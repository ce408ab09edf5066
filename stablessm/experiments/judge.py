"""``python -m stablessm.experiments.judge RESULTS``: recompute figures and claims of complete runs from their stages.

Run this command after you have changed a rule for verdicts, the text of a claim, or a figure. No stage is computed
again. Each verdict that changes is printed.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stablessm import record
from stablessm._errors import ArgumentError, quoted
from stablessm.experiments import catalog
from stablessm.experiments.frame.base import Plan, is_complete
from stablessm.experiments.frame.stages import PACK


def judge(folder: Path) -> Iterator[str]:
    """Rewrite the figures and the record of a complete run; yield one line for each verdict that changed.

    Args:
        folder: The run folder of an experiment of the catalog, ``ID/SIZE``.
    """
    path = folder / "record.json"
    before = record.read_json(path)
    with record.reading(path, "the record of an experiment"):
        words = shlex.split(before["command"])
        changes = dict(words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "--set")
        size: Any = words[words.index("--size") + 1]
        known = {claim["statement"]: claim["verdict"] for claim in before["claims"]}
        places = [{k: v for k, v in place.items() if k not in ("stages", "seconds")} for place in before["computed"]]
        record.require_digest(folder / PACK, before.get("files", {}).get(PACK))
    if before["id"] not in catalog.ids():  # a record must not name code to run
        raise ArgumentError("id", f"an experiment that stablessm list shows, in {path}", quoted(before["id"]))
    plan = Plan.of(catalog.get(before["id"]), size, folder.parent.parent, changes)
    if plan.folder != folder:
        raise ArgumentError("folder", f"{plan.folder}, where its settings belong", str(folder))
    plan.conclude(before["stages"], places)
    for claim in record.read_json(path)["claims"]:
        old = known.get(claim["statement"], "(new claim)")
        if old != claim["verdict"]:
            yield f"{before['id']}: {claim['statement']}: {old} -> {claim['verdict']}"


def main(arguments: list[str] | None = None) -> None:
    """Recompute figures and claims of every complete run in or below the given folders."""
    described = (__doc__ or "").split("\n\n", 1)[-1]
    parser = argparse.ArgumentParser(prog="python -m stablessm.experiments.judge", description=described)
    parser.add_argument("folders", type=Path, nargs="+", metavar="RESULTS", help="run folders, or folders above them")
    for root in parser.parse_args(arguments).folders:
        folders = [path.parent for path in sorted(root.rglob("record.json")) if is_complete(path.parent)]
        if not folders:
            parser.error(f"no complete run in {root}")
        for folder in folders:
            try:
                print("\n".join([str(folder), *(f"  {line}" for line in judge(folder))]))
            except (OSError, ArgumentError) as error:
                parser.error(str(error))


if __name__ == "__main__":
    main()
