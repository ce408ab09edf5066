"""Beyond the papers: language models that a user would train."""
