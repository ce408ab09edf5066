"""The experiment ``su-conv``: how many states one linear layer needs for a given convolution (SSM-UA,
proposition 3.2).
"""
