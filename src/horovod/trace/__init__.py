"""Views over the flight recorder of the engine: reading its files, and what they say.

``horovod.trace.recording`` reads a file; ``horovod.trace.operations`` finds in it what was done;
``horovod.trace.worlds`` puts files of one world together, and ``horovod.trace.analysis`` says what
they mean. ``horovod.trace.presence`` knows which ranks run. ``horovod.trace.report`` makes the page
of a job and needs no files.
"""
