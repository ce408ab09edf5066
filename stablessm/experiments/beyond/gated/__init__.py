"""The experiment ``ext-gated``: the largest learning rate of the recurrent weights at which a gated layer trains, for
each map.
"""
