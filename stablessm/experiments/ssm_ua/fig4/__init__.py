"""The experiment ``su-fig4``: width and error of Volterra series computed by recurrences (SSM-UA, figure 4)."""
