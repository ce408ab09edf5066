"""``stablessm bench ssm``, with the record among the committed ones.

./dev bench ssm                 # this machine's CPU, writes benchmarks/results/ssm-cpu.json
python benchmarks/ssm.py --device cuda
python benchmarks/ssm.py --smoke --out /tmp/smoke.json
"""

import sys

import _measure

from stablessm.bench.command import main

if __name__ == "__main__":
    main(["ssm", *sys.argv[1:]], out=_measure.RESULTS)
