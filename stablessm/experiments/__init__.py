"""Experiments that reproduce the figures and tables of the papers: one folder per experiment; ``catalog`` finds an
experiment by its id.
"""

from stablessm._renamed import module_names

__getattr__ = module_names(__name__, "catalogue")
