"""The experiment ``lr-fig9``: a fixed linear recurrence and one MLP on a Lotka–Volterra system (LRU-UA, figure 9)."""
