"""The command line ``stablessm``, with one file per command."""

from stablessm.cli.main import app

__all__ = ["app"]
