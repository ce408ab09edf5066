"""What becomes of damaged files and failing disks: every kind of file the package writes, damaged at random and read.

    python benchmarks/damage.py                 # writes benchmarks/results/damage.json
    python benchmarks/damage.py --workers 16    # 16 processes
    python benchmarks/damage.py --smoke --out /tmp/smoke.json

One file of a small real folder is damaged: a bit flipped, the file truncated, emptied, overwritten, exchanged for the
file of another run, deleted, replaced by a folder or a symbolic link, or changed in a valid way. Then a command or a
function that reads such a folder runs in this process. ``tests/damage.py`` says what the outcomes mean; the default
tests run a few members of the same generator.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import _measure

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import damage
import damage_disks
from damage_kinds import KINDS


@dataclass(frozen=True)
class Share:
    """Members that one process makes: some of a kind of file, or all of a command with a failing disk."""

    kind: str
    numbers: range
    seed: int

    def members(self) -> list[damage.Member]:
        """Return the members."""
        with tempfile.TemporaryDirectory() as root:
            if self.kind in KINDS:
                workshop = damage.Workshop(Path(root), KINDS)
                return [workshop.member(self.kind, number, self.seed) for number in self.numbers]
            each = [(fault, number) for fault in damage_disks.FAULTS for number in self.numbers]
            return [damage_disks.member(Path(root), self.kind, *one, self.seed) for one in each]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=54, help="number of members of each kind (default: 54)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="number of processes (default: 1)")
    parser.add_argument("--smoke", action="store_true", help="two members of each kind")
    parser.add_argument("--out", type=Path, default=_measure.RESULTS / "damage.json", help="record to write")
    args = parser.parse_args()
    count = 2 if args.smoke else args.members
    parts = 1 if args.workers == 1 else min(4, count)  # more than one process for a kind whose readers are slow
    shares = [Share(kind, range(part, count, parts), args.seed) for kind in KINDS for part in range(parts)]
    shares += [Share(name, range(max(count // 16, 1)), args.seed) for name in damage_disks.COMMANDS]
    members: list[damage.Member] = []
    with multiprocessing.get_context("spawn").Pool(args.workers, maxtasksperchild=5) as pool:
        for share, found in zip(shares, pool.imap(Share.members, shares, chunksize=1), strict=True):
            members += found
            print(f"{share.kind}: {dict(Counter(member.outcome for member in found))}", flush=True)
    counts = Counter(member.outcome for member in members)
    summary = {"members": len(members), **{outcome: counts[outcome] for outcome in damage.OUTCOMES}}
    bad = [vars(member) for member in members if member.outcome in damage.BAD]
    _measure.write_record(args.out, "cpu", damage.rows(members), summary, seed=args.seed, bad=bad)
    print(summary)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
