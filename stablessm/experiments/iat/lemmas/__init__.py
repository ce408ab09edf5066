"""The experiment ``ia-lemmas``: numerical checks of lemmas A.10 and A.11 and of theorem A.4 of IAT. Lemma A.10 is on a
Lyapunov bound; the other two are on models whose modes all decay at least at a common rate.
"""
