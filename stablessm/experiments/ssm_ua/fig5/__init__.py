"""The experiment ``su-fig5`` on figure 5 of SSM-UA."""
