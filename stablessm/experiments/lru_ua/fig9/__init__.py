"""The experiment ``lr-fig9`` on figure 9 of LRU-UA."""
