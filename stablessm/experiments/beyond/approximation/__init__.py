"""The experiment ``ext-approximation``: attention, gated and linear recurrences trained on the same targets."""
