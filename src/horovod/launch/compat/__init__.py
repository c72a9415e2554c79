"""The launcher's parts under upstream's names and arguments, for launchers that import them.

``horovod.runner`` has the import paths.
"""
