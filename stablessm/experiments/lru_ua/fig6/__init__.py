"""The experiment ``lr-fig6`` on figure 6 of LRU-UA."""
