"""The experiment ``su-decay``: how fast outputs converge after a linear layer and after an activation (SSM-UA,
propositions 3.11 and 3.12).
"""
