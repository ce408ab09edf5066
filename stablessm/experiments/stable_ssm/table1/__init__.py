"""The experiment ``st-table1``: the formulas for the gradient scales of the maps (StableSSM, table 1), compared with
automatic differentiation.
"""
