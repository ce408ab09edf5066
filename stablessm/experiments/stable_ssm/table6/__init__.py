"""Experiment ``st-table6``: StableSSM, table 6, sequential CIFAR-10."""
