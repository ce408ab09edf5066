"""Experiment ``su-table1``: SSM-UA, table 1."""
