"""Beyond the papers: rounding as a perturbation."""
