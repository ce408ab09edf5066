"""Experiment ``st-rates``: the largest learning rate at which a language model trains, for each map."""
