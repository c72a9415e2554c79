"""``horovod.run``: calls a function in many processes."""
