"""``stablessm bench accuracy``, with the record among the committed ones.

./dev bench accuracy             # this machine's CPU, writes benchmarks/results/accuracy-cpu.json
python benchmarks/accuracy.py --device cuda
python benchmarks/accuracy.py --smoke --out /tmp/smoke.json
"""

import sys

import _measure

from stablessm.bench.command import main

if __name__ == "__main__":
    main(["accuracy", *sys.argv[1:]], out=_measure.RESULTS)
