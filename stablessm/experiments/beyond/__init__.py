"""Experiments on questions that no paper asks."""
