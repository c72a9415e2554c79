"""TensorFlow on Spark in addition to ``horovod.spark.run``: tf.data service."""
