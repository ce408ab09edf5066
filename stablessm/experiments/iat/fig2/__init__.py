"""The experiment ``ia-fig2`` on figure 2 of IAT."""
