"""SSM-UA, figure 3."""
