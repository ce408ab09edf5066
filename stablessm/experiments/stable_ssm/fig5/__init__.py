"""The experiment ``st-fig5``: gradient-to-weight ratios during the training of language models (StableSSM,
figure 5).
"""
