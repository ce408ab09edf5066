"""The experiment ``ext-architectures``: how the memory of recurrent models, attention, Mamba and RWKV decays."""
