"""Experiments on questions that the four papers do not ask."""
