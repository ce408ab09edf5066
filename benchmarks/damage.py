"""What becomes of damaged files and failing disks: every kind of file the package writes, damaged at random and read.

    python benchmarks/damage.py                 # writes benchmarks/results/damage.json
    python benchmarks/damage.py --smoke --out /tmp/smoke.json

One file of a small real folder is damaged: a bit flipped, the file truncated, emptied, overwritten, exchanged for the
file of another run, deleted, replaced by a folder or a symbolic link, or changed in a valid way. Then a command or a
function that reads such a folder runs in this process. ``tests/damage.py`` says what the outcomes mean; the default
tests run a few members of the same generator.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

import _measure

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import damage
import damage_disks
from damage_kinds import KINDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=70, help="members of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="two members of each kind")
    parser.add_argument("--out", type=Path, default=_measure.RESULTS / "damage.json", help="record to write")
    args = parser.parse_args()
    count = 2 if args.smoke else args.members
    members: list[damage.Member] = []
    with tempfile.TemporaryDirectory() as root:
        workshop = damage.Workshop(Path(root), KINDS)
        for kind in KINDS:
            members += [workshop.member(kind, number, args.seed) for number in range(count)]
            _tell(kind, members)
        for name in damage_disks.COMMANDS:
            for fault in damage_disks.FAULTS:
                some = range(max(count // 16, 1))
                members += [damage_disks.member(Path(root), name, fault, number, args.seed) for number in some]
            _tell(f"disk of {name}", members)
    counts = Counter(member.outcome for member in members)
    summary = {"members": len(members), **{outcome: counts[outcome] for outcome in damage.OUTCOMES}}
    bad = [vars(member) for member in members if member.outcome in damage.BAD]
    _measure.write_record(args.out, "cpu", damage.rows(members), summary, seed=args.seed, bad=bad)
    print(summary)
    sys.exit(bool(bad))


def _tell(kind: str, members: list[damage.Member]) -> None:
    print(f"{kind}: {dict(Counter(member.outcome for member in members if member.kind == kind))}", flush=True)


if __name__ == "__main__":
    main()
