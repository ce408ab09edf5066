"""``stablessm`` and ``python -m stablessm`` (for launchers that start modules, such as torchrun): the command line."""

import sys


def main() -> None:
    """Run the command line, or print in one line what to install for it."""
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
