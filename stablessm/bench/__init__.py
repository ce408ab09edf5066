"""Speed and accuracy on this machine: ours, the peers that are installed and what the hardware can do, in one run.

Requires only torch and numpy. ``command.SUITES`` lists the suites; without typer, run one from Python:
``command.run("scan", Options(device="cuda"))``.
"""
