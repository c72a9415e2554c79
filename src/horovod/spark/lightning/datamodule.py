"""The import path of the default data module; see docs/estimators.md."""

from horovod.core.base.replaced import names_of
from horovod.spark.common.datamodule import PetastormDataModule

__all__ = ["PetastormDataModule"]

__getattr__ = names_of(__name__)
