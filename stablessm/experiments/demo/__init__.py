"""The stability demonstration: the question of StableSSM, figure 1, in two minutes."""
