"""The experiment ``su-fig2`` on figure 2 of SSM-UA."""
