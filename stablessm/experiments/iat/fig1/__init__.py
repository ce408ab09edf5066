"""The experiment ``ia-fig1`` on figure 1 of IAT."""
