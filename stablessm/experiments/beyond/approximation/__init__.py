"""The experiment ``ext-approximation``: networks with attention, gated recurrences or linear recurrences, trained on
the same targets.
"""
