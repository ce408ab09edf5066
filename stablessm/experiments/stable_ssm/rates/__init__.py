"""The experiment ``st-rates``: how large the learning rate of a language model may be, for each map (StableSSM, section
4.2).
"""
