"""The experiment ``lr-fig7`` on figure 7 of LRU-UA."""
