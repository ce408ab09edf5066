"""The experiment ``su-depth`` on appendix A of SSM-UA."""
