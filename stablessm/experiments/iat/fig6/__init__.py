"""IAT, figure 6."""
