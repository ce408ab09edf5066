"""Paper 002, appendix A."""
