"""The experiment ``ia-fig4`` on figure 4 of IAT."""
