"""The experiment ``ext-nonlinear``: whether stable matrix maps make the approximation of nonlinear targets with slow
memory stable.
"""
