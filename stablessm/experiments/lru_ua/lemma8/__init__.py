"""The experiment ``lr-lemma8``: can maps that compute the output at one position each be joined into one causal map
that is continuous in the position? (LRU-UA, lemma 8)
"""
