"""How many epochs tanh RNNs need for exponential and for polynomial memory."""
