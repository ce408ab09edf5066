"""Experiment ``su-depth``: SSM-UA, appendix A."""
