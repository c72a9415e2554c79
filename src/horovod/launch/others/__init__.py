"""What launchers of others import: the launcher's parts under the names and with the arguments that
the original has for them. ``horovod.runner`` has the import paths.
"""
