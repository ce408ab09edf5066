"""The experiment ``lr-lemma8``: one continuous causal map for all positions (LRU-UA, lemma 8)."""
