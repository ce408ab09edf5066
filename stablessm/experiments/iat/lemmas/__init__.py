"""The experiment ``ia-lemmas`` on the lemmas A.10 and A.11 and on theorem A.4 of IAT."""
