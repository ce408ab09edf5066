"""The command line, ``stablessm``: one file per command."""

from stablessm.cli.main import app

__all__ = ["app"]
