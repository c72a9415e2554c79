"""What TensorFlow runs on Spark beside ``horovod.spark.run``: tf.data service."""
