"""Loaders for data modules that bring readers of their own."""
