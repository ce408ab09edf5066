"""Experiment ``st-table5``: StableSSM, table 5, sequential MNIST."""
