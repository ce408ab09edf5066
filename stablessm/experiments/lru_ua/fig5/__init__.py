"""The experiment ``lr-fig5`` on figure 5 of LRU-UA."""
