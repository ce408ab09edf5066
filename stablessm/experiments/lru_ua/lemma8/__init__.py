"""Experiment ``lr-lemma8``: lemma 8 of LRU-UA, the position of a token as a continuous input."""
