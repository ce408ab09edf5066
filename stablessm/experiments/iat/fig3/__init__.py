"""IAT, figure 3."""
