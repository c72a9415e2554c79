"""Lightning modules as stages of Spark ML; the names are those of ``horovod.spark.torch``.

``strategy`` needs no Spark, so the stages are imported when they are used.
"""

from typing import TYPE_CHECKING

import lightning

from horovod.core.base.later import imported_later as _imported_later

if TYPE_CHECKING:
    from horovod.spark.lightning.estimator import TorchEstimator, TorchModel

if tuple(int(number) for number in lightning.__version__.split(".")[:2]) < (2, 2):
    raise RuntimeError(
        f"horovod.spark.lightning needs lightning 2.2 or newer, not {lightning.__version__}"
    )

__all__ = ["TorchEstimator", "TorchModel"]


__getattr__ = _imported_later(__name__, dict.fromkeys(__all__, "horovod.spark.lightning.estimator"))
