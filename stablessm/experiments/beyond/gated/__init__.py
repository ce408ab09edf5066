"""The experiment ``ext-gated``: how large the learning rate of the recurrent weights of a gated layer may be, for each
map.
"""
