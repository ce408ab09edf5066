"""The experiment ``su-table1``: cost and memory of RNNs, SSMs, TCNs and transformers (SSM-UA, table 1)."""
