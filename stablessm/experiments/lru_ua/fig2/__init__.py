"""The experiment ``lr-fig2`` on figure 2 of LRU-UA."""
