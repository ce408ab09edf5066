"""The experiment ``lr-lemma8``: if each of several maps computes the output at one position, can they be joined into
one causal map that is continuous in the position? (LRU-UA, lemma 8)
"""
