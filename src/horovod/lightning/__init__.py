"""Lightning's ``Trainer`` over Horovod; see docs/lightning.md.

    from horovod.lightning import HorovodStrategy

    Trainer(strategy=HorovodStrategy(), accelerator="auto", devices="auto").fit(module)

Works with ``lightning`` and with ``pytorch_lightning`` (``library`` selects one); needs no Spark.
"""

from horovod.lightning import library  # noqa: F401  # first: it names a missing package
from horovod.lightning.metrics import LogMetricsCallback, MetricsLogger
from horovod.lightning.strategy import HorovodStrategy

__all__ = ["HorovodStrategy", "LogMetricsCallback", "MetricsLogger"]
