"""Lightning modules as stages of Spark ML; the names are those of ``horovod.spark.torch``.

``strategy`` needs no Spark, so the stages are imported when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lightning

if TYPE_CHECKING:
    from horovod.spark.lightning.estimator import TorchEstimator, TorchModel

if int(lightning.__version__.split(".")[0]) < 2:
    raise RuntimeError(
        f"horovod.spark.lightning needs lightning 2.0 or newer, not {lightning.__version__}"
    )

__all__ = ["TorchEstimator", "TorchModel"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from horovod.spark.lightning import estimator

        return getattr(estimator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
