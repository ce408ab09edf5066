"""The experiment ``su-fig6`` on figure 6 of SSM-UA."""
