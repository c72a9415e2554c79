"""``horovod.run`` and ``run_elastic``: a function on many processes."""
