"""``python -m stablessm.bench``: the same as ``stablessm bench``, where typer and rich are not installed."""

from stablessm.bench.command import main

if __name__ == "__main__":
    main()
