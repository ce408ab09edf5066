"""Experiment ``su-conv``: SSM-UA, proposition 3.2."""
