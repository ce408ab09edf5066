"""Code in a process of its own that has imported PyTorch and nothing of ours.

It is forked from one that waits, once per worker, so that a test does not import PyTorch again, which takes seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

SERVER = """
import json, os, sys, traceback
import numpy, torch

for line in sys.stdin:
    code, environment, folder, outputs = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
        for number, path in enumerate(outputs, 1):
            os.dup2(os.open(path, os.O_WRONLY), number)
        exit_code = 0
        try:
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        except SystemExit as error:
            exit_code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            traceback.print_exc()
            exit_code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _server() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SERVER]  # ends when its input does
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run(code: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run code as ``python -c`` does; where there is no fork, by it."""
    command = [sys.executable, "-c", code]
    if not hasattr(os, "fork"):
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        for path in outputs:
            path.touch()
        asked = [code, dict(os.environ if env is None else env), os.getcwd(), [str(path) for path in outputs]]
        server = _server()
        print(json.dumps(asked), file=server.stdin, flush=True)
        exit_code = int(server.stdout.readline())
        return subprocess.CompletedProcess(command, exit_code, *(path.read_text(encoding="utf-8") for path in outputs))
