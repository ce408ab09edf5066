"""``stablessm bench stream``, with the record among the committed ones.

./dev bench stream             # this machine's CPU, writes benchmarks/results/stream-cpu.json
python benchmarks/stream.py --smoke --out /tmp/smoke.json
"""

import sys

import _measure

from stablessm.bench.command import main

if __name__ == "__main__":
    main(["stream", *sys.argv[1:]], out=_measure.RESULTS)
