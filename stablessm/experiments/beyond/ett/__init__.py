"""Beyond the papers: a forecast of a real series."""
