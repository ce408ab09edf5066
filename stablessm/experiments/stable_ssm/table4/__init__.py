"""Associative recall, map by map."""
