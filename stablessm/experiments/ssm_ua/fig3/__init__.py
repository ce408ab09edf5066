"""The experiment ``su-fig3``: Kolmogorov–Arnold superpositions computed by five layers (SSM-UA, figure 3)."""
