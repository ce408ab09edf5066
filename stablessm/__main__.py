"""The entry point of the commands ``stablessm`` and ``python -m stablessm``.

Launchers such as torchrun start modules with ``python -m``.
"""

import io
import os
import sys


def main() -> None:
    """Run the command line; if a package is missing, print one line on how to install it."""
    from stablessm import _current_folder

    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed, and without a stand-in the next file that is opened takes its number
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a text may have characters that the encoding lacks
    from stablessm._optional import import_failure

    _current_folder.leave()
    try:
        from stablessm.cli import app
    except Exception as error:
        if (remedy := import_failure(error)) is None:
            raise
        sys.exit(remedy)
    try:
        app(prog_name="stablessm")
    finally:
        _flush()


def _flush() -> None:
    """Write what was printed; if that fails, exit with one line instead of the two of Python's own."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes again when it ends
        sys.exit(f"cannot write to the standard output: {error.strerror}")


if __name__ == "__main__":
    main()
