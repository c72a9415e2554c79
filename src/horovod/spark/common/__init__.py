"""The common parts of the estimators of all frameworks; see docs/estimators.md.

    DataFrame --Spark--> Parquet in a store --Arrow--> blocks --> pool --> batches --> training
              preparation                    reader           shuffling

``fit`` checks the params, prepares the data and makes a ``Plan``, which is pickled for the training
processes. The plan has the row groups of all files, so only the driver lists files, and processes
compute their shards (``columns``) without communication. ``reader`` decodes a shard on a thread
that continues over the ends of epochs, and exchanges rows of a pool of bounded size with new rows.
Each framework adds an estimator and a model (``estimator``), and the training in a process
(``training``).
"""
