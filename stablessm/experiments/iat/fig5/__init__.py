"""The experiment ``ia-fig5`` on figure 5 of IAT."""
