"""The experiment ``st-table2``: perplexity of language models for each map (StableSSM, table 2)."""
