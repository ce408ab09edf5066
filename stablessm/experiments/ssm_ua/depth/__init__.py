"""SSM-UA, appendix A."""
