"""The experiment ``st-rates``: the largest learning rate at which a language model trains, for each map (StableSSM,
section 4.2).
"""
