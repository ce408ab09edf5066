"""The experiment ``ia-fig6`` on figure 6 of IAT."""
