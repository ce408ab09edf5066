"""The experiment ``ia-lemmas``: lemmas A.10 and A.11 and theorem A.4 of IAT, on models whose modes decay uniformly and
on a Lyapunov bound.
"""
