"""SSM-UA, figure 2."""
