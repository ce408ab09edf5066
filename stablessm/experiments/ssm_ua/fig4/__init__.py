"""SSM-UA, figure 4."""
