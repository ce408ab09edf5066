"""The experiment ``lr-lemma8``: whether one continuous causal map gives the outputs at all positions (LRU-UA,
lemma 8).
"""
