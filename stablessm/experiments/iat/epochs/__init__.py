"""The experiment ``ia-epochs``: how many epochs tanh RNNs need to learn targets with exponential and with polynomial
memory (IAT, section 4.3).
"""
