"""The entry point of the commands ``stablessm`` and ``python -m stablessm``.

Launchers such as torchrun start modules with ``python -m``.
"""

import sys


def main() -> None:
    """Run the command line; if a package is missing, print one line on how to install it."""
    from stablessm import _current_folder
    from stablessm._optional import import_failure

    _current_folder.leave()
    try:
        from stablessm.cli import app
    except Exception as error:
        if (remedy := import_failure(error)) is None:
            raise
        sys.exit(remedy)
    app(prog_name="stablessm")


if __name__ == "__main__":
    main()
