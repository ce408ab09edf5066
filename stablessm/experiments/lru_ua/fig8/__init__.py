"""The experiment ``lr-fig8`` on figure 8 of LRU-UA."""
