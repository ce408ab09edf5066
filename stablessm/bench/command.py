"""The suites of ``stablessm bench``, and a function that runs one or all of them."""

from __future__ import annotations

from pathlib import Path

from stablessm._errors import ArgumentError, unknown_name
from stablessm.bench import accuracy, machine, scan, ssm, stream
from stablessm.bench.options import Options

SUITES = {"scan": scan, "ssm": ssm, "accuracy": accuracy, "stream": stream}
"""Modules by the name of their suite; each has a function ``run(options)`` that updates a record after every case."""


def run(suite: str, options: Options) -> list[Path]:
    """Run the suite with the given name, or all suites for the name ``all``, and return the paths of the records."""
    if suite not in (*SUITES, "all"):
        raise unknown_name("suite", [*SUITES, "all"], suite)
    everything = [name for name in SUITES if options.device == "cpu" or name != "stream"]  # CPU only
    chosen = everything if suite == "all" else [suite]
    if suite == "all" and (options.sizes or options.dtypes):
        raise ArgumentError("suite", "a single suite, because --shapes and --dtype differ between suites", "'all'")
    if suite == "all" and options.out.suffix == ".json":
        raise ArgumentError("out", "a folder, because every suite writes its own record", str(options.out))
    if not options.smoke:
        machine.keep_memory()
    for name in chosen:
        SUITES[name].run(options)
        print(f"\nwritten: {options.path(name)}")
    return [options.path(name) for name in chosen]
