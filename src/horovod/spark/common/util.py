"""``prepare_data``, where scripts look for it."""

from horovod.spark.common.preparation import prepare_data

__all__ = ["prepare_data"]
