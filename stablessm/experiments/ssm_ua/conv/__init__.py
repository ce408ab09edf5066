"""SSM-UA, proposition 3.2."""
