"""The experiment ``lr-fig4`` on figure 4 of LRU-UA."""
