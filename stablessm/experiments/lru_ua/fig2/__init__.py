"""The experiment ``lr-fig2``: digits reconstructed from the last state of a linear recurrence (LRU-UA, figure 2)."""
