"""Views of the engine's flight recorder: reads its files and analyses them.

``recording`` reads a file, and ``operations`` finds the operations in it; ``worlds`` groups the
files by worlds, and ``analysis`` interprets a world. ``presence`` finds the ranks that run.
``report`` makes the page of a job and needs no files.
"""
