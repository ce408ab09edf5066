"""The experiment ``ia-epochs``: the number of epochs that tanh RNNs need to learn exponential and polynomial memory
(IAT, section 4.3).
"""
