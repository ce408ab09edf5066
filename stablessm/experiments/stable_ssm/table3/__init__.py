"""The experiment ``st-table3``: a language model with three billion parameters at a large learning rate (StableSSM,
table 3).
"""
