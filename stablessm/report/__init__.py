"""Writes an HTML report from the records of runs. It only reads files and does not need PyTorch."""
