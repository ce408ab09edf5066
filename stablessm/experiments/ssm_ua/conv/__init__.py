"""The experiment ``su-conv`` on proposition 3.2 of SSM-UA."""
