"""Experiment ``ext-architectures``: the memory of recurrent models, attention, Mamba and RWKV."""
