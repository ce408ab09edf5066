"""The experiment ``demo``, which ``stablessm demo`` runs: figure 1 of StableSSM in a small size that takes
two minutes.
"""
