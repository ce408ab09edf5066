"""``python -m stablessm``: the command line, for launchers that start modules, such as ``torchrun``."""

from stablessm.cli import app

if __name__ == "__main__":
    app(prog_name="stablessm")
