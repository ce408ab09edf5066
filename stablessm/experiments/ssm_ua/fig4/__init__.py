"""The experiment ``su-fig4`` on figure 4 of SSM-UA."""
