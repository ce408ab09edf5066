"""The experiment ``ia-fig5``: how long recurrent sentiment models remember repeated words (IAT, figure 5)."""
