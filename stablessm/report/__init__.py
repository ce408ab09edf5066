"""Writes one HTML report from the records of runs. It does not need PyTorch, because it only reads files."""
