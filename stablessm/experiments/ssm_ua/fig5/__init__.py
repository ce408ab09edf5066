"""SSM-UA, figure 5."""
