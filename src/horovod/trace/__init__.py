"""Views over the flight recorder of the engine: reading its files, and what they say.

``horovod.trace.recording`` reads a file; ``horovod.trace.operations`` finds in it what was done.
``horovod.trace.report`` makes the page of a job, which needs no file.
"""
