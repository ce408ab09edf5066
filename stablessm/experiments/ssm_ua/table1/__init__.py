"""SSM-UA, table 1."""
