"""Experiments that reproduce the figures and tables of the papers: one folder for each, listed in ``catalog``."""

from stablessm._renamed import module_names

__getattr__ = module_names(__name__, "catalogue")
