"""Experiments: what a reader of the papers can run again."""
