"""The experiment ``lr-fig4``: errors and condition numbers of reconstructed digits (LRU-UA, figure 4)."""
