"""PyTorch models as stages of Spark ML: ``from horovod.spark.torch import TorchEstimator``."""

from horovod.spark.torch.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
