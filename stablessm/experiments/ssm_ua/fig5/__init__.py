"""The experiment ``su-fig5``: memory functions of random RNNs, GRUs, LSTMs and SSMs (SSM-UA, figure 5)."""
