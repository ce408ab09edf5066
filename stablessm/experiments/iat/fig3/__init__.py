"""The experiment ``ia-fig3`` on figure 3 of IAT."""
