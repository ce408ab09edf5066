"""The experiment ``su-decay``: if an input converges exponentially, how fast do the outputs of a linear layer and of an
activation converge? (SSM-UA, propositions 3.11 and 3.12)
"""
