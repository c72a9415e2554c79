"""Pickled functions and their results on the way to and from workers."""
