"""Run commands in a process in which one package is missing or broken, and say how each of them ended.

``python tests/missing_packages.py PACKAGE missing|ImportError|OSError FOLDER [COMMAND...]`` prints one JSON object: the
exit status of each command, what it printed, and the exception where a traceback would have been shown.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path

COMMANDS = {
    "version": "--version",
    "env": "env",
    "list": "list",
    "demo": "demo --smoke --out {out}/demo",
    "fit": "fit 1/(1+t)**1.1 --horizon 50 --tol 1e-3 --out {out}/fit",
    "measure": "measure {out}/layer --horizon 16 --out {out}/measure",
    "measure hub": "measure sshleifer/tiny-gpt2 --horizon 16 --out {out}/measure",
    "train": "train recall --steps 2 --batch-size 2 --out {out}/train --set n_layers=1 --set d_model=4",
    "train lm": "train lm -o text={out}/text.txt -o length=16 -o level=char --steps 2 --batch-size 2 --out {out}/lm",
    "train bpe": "train lm -o text={out}/text.txt -o length=16 -o level=bpe --steps 2 --batch-size 2 --out {out}/bpe",
    "eval": "eval {out}/train --split valid",
    "generate": "generate {out}/lm the --tokens 3",
    "export onnx": "export {out}/layer {out}/step.onnx",
    "export torch": "export {out}/layer {out}/step.pt2",
    "run": "run su-fig2 --out {out}/runs",
    "run transformers": "run ext-architectures --out {out}/runs",
    "run bert": "run ia-fig6 --out {out}/runs",
    "run several": "run ext-architectures su-depth --out {out}/several",
    "run jobs": "run ext-architectures --jobs 1 --out {out}/jobs",
    "run ray": "run su-depth --on ray --out {out}/ray",
    "run slurm": "run su-depth --on slurm --executor local --out {out}/slurm",
    "search": "search recall --over lr=log:1e-3:1e-1 --trials 1 --set steps=1 --out {out}/search",
    "status": "status --out {out}/runs",
    "report": "report {out}/runs --out {out}/report.html",
    "bench": "bench scan --smoke --out {out}/bench",
}
"""Small members of every command, by name."""


def block(package: str, how: str, folder: Path) -> None:
    """Let ``import package`` fail: as if it were not installed, or with an error of its own."""
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]
    if how == "missing":
        sys.modules[package] = None  # type: ignore[assignment]
        return
    stub = folder / "broken" / package / "__init__.py"
    stub.parent.mkdir(parents=True)
    stub.write_text(f"raise {how}('lib{package}.so: cannot open shared object file')\n", encoding="utf-8")
    sys.path.insert(0, str(folder / "broken"))


def run(command: str) -> dict[str, object]:
    """Exit status, output, and the exception that a user would see as a traceback, if any."""
    from stablessm.cli import app

    out, error, code = io.StringIO(), "", 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            app(command.split(), prog_name="stablessm")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            out.write(ended.code if isinstance(ended.code, str) else "")
        except BaseException as raised:
            error = f"{type(raised).__name__}: {raised}"
    return {"code": code, "said": out.getvalue(), "error": error}


def main(package: str, how: str, folder: str, *names: str) -> None:
    """Prepare what the commands read, then run them one after the other."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    os.chdir(out)
    if package:
        block(package, how, out)
    (out / "text.txt").write_text("the cat sat on the mat and the dog sat on the cat\n" * 40, encoding="utf-8")
    with contextlib.suppress(Exception):
        import stablessm

        stablessm.save(stablessm.RealSSM(1, 4, 1), out / "layer")
    results = {name: run(COMMANDS[name].format(out=out)) for name in names or COMMANDS}
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
