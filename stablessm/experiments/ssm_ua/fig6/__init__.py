"""SSM-UA, figure 6."""
