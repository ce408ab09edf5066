"""Experiment ``ia-epochs``: the number of epochs that tanh RNNs need for exponential and for polynomial memory."""
