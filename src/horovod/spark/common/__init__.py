"""What the estimators of all frameworks share; see docs/estimators.md.

    DataFrame --Spark--> Parquet in a store --Arrow--> blocks --> pool --> batches --> training
              preparation                    reader           shuffling

``fit`` checks the params, prepares the data and makes a ``Plan``. The plan can be pickled and is
all that a process is told. It has the row groups of all files, so processes cut them into shares
(``pieces``) without asking each other, and only the driver lists files. ``reader`` decodes a share
on a thread that goes on over the ends of epochs. ``shuffling`` exchanges rows of a pool of bounded
size with new rows. Each framework's folder adds an estimator and a model (``estimator``), what a
process does (``training``), and how columns become inputs (``shapes``).
"""
