"""The stability demonstration ``stablessm demo``: the question of StableSSM, figure 1, answered in two minutes."""
