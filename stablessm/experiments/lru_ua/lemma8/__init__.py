"""The position of a token as a continuous input: lemma 8 of LRU-UA."""
