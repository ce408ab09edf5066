"""The figures and tables of the papers, again: one folder each, listed in ``catalogue``."""
