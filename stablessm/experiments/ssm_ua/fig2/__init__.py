"""The experiment ``su-fig2``: elementwise functions computed by two layers without memory (SSM-UA, figure 2)."""
