"""IAT, figure 5."""
