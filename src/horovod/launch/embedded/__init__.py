"""Agents inside the processes that Spark or Ray has placed."""
