"""``horovodrun --simulate`` and ``--calibrate``: ``horovod.simulate`` for the command line."""
