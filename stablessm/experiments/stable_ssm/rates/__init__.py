"""The largest learning rate that a language model survives with each map."""
