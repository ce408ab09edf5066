"""Beyond the papers: other activations."""
