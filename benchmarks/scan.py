"""``stablessm bench scan``, with the record among the committed ones.

./dev bench scan                 # this machine's CPU, writes benchmarks/results/scan-cpu.json
python benchmarks/scan.py --device cuda
python benchmarks/scan.py --smoke --out /tmp/smoke.json
"""

import sys

import _measure

from stablessm.bench.command import main

if __name__ == "__main__":
    main(["scan", *sys.argv[1:]], out=_measure.RESULTS)
