"""Lightning modules as stages of Spark ML; the names are those of ``horovod.spark.torch``."""

from __future__ import annotations

import lightning

if int(lightning.__version__.split(".")[0]) < 2:
    raise RuntimeError(
        f"horovod.spark.lightning needs lightning 2.0 or newer, not {lightning.__version__}"
    )

from horovod.spark.lightning.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
