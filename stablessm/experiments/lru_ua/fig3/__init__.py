"""The experiment ``lr-fig3`` on figure 3 of LRU-UA."""
