"""Experiment ``ext-ett``: forecasts of a measured hourly series."""
