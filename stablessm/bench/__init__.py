"""Speed and accuracy on this machine: ours, the peers that are installed and what the hardware can do, in one run.

Needs torch and numpy alone. A suite is a module here with a function ``run(options)`` that writes a record as it
goes; ``command.SUITES`` lists them.
"""
