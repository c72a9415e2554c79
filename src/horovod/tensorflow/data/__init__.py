"""tf.data service on Horovod ranks: ``compute_service`` has the interface, ``compute_worker`` the
server program."""
