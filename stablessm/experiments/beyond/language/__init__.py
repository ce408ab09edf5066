"""The experiment ``ext-language``: language models of a size that users can train on one GPU in minutes."""
