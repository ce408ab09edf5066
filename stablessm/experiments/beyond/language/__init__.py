"""Experiment ``ext-language``: language models at the size that a user would train."""
