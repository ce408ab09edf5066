"""The experiment ``st-table6``: classification of grayscale CIFAR-10 images pixel by pixel, for each map (StableSSM,
table 6).
"""
