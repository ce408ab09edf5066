"""The experiment ``su-table1`` on table 1 of SSM-UA."""
