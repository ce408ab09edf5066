"""The experiment ``st-table1``: gradient scales of the maps (StableSSM, table 1), compared with automatic
differentiation.
"""
