"""Up to which learning rate of its recurrent weights a gated layer trains with each map."""
