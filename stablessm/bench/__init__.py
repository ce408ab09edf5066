"""Benchmarks of speed and accuracy: stablessm, other installed packages ("peers") and the limits of the hardware.

Requires only torch and numpy. ``command.SUITES`` lists the suites; without typer, run one from Python:
``command.run("scan", Options(device="cuda"))``.
"""
