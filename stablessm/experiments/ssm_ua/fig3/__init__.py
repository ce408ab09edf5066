"""The experiment ``su-fig3`` on figure 3 of SSM-UA."""
