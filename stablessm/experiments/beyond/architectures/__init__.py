"""Beyond the papers: other architectures."""
