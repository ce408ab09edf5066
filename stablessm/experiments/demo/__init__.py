"""The stability demonstration: the question of paper 004, figure 1, in two minutes."""
