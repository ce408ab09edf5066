"""The experiment ``lr-fig9``: an MLP on the states of a fixed linear recurrence learns a Lotka–Volterra system (LRU-UA,
figure 9).
"""
