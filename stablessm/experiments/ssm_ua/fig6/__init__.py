"""The experiment ``su-fig6``: memory functions of random S4 models (SSM-UA, figure 6)."""
