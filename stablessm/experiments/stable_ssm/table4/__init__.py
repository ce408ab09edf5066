"""The experiment ``st-table4``: associative recall over 20 and over 131,072 tokens, for each map (StableSSM,
table 4).
"""
