"""The common parts of the estimators of all frameworks; see docs/estimators.md.

    DataFrame --Spark--> Parquet in a store --Arrow--> blocks --> pool --> batches --> training
              preparation                    reader           shuffling

``fit`` checks the params, prepares the data and makes a ``Plan``, which is pickled for the training
processes. The plan has the row groups of all files, so only the driver lists files, and processes
compute their shards (``shards``) without communication. ``reader`` decodes a shard on a thread that
continues over the ends of epochs. ``shuffling`` exchanges rows of a pool of bounded size with new
rows. Each framework's folder adds an estimator and a model (``estimator``), the training in a
process (``training``), and the conversion of columns to inputs (``shapes``).
"""
