"""The metrics of all ranks as families of Prometheus metrics; needs prometheus-client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from horovod.metrics.counters import KINDS, MOVING
from horovod.metrics.exchange import REPORT_TIME, Numbers

__all__ = ["JobCollector"]

_BY_KIND = {
    "operations": "operations that were submitted",
    "tensors": "tensors that were submitted",
    "bytes": "bytes of the tensors that were submitted",
}
_COUNTERS = {
    "buckets": "collectives that were run, each with the tensors of one operation or more",
    "fused_tensors": "tensors that ran together with others",
    "queued_seconds": "time from submission to start, of all operations together",
    "waited_seconds": "time in which running collectives waited for other ranks",
    "blocked_seconds": "time that threads of the program waited for results",
    "errors": "operations that failed",
    "stalls": "operations that waited for longer than the stall check allows",
    "resets": "worlds after the first one",
    "steps": "steps of training, as far as they can be told",
    "step_seconds": "time of these steps",
}
_GAUGES = {
    "in_flight_operations": "operations under way",
    "last_step_seconds": "time of the last step",
    REPORT_TIME: "when the rank has reported these numbers",
}


class JobCollector(Collector):
    """Makes metric families of the ranks' metrics that ``read`` returns, for each request."""

    def __init__(self, read: Callable[[], Mapping[int, Numbers]], size: int) -> None:
        self._read = read
        self._size = size

    def collect(self) -> Iterable[Metric]:
        """See ``Collector``."""
        by_rank = self._read()
        yield GaugeMetricFamily("horovod_size", "ranks of the world", value=self._size)
        for what, text in _BY_KIND.items():
            counter = CounterMetricFamily(f"horovod_{what}", text, labels=["rank", "kind"])
            for rank, numbers in by_rank.items():
                for kind in KINDS if what == "operations" else MOVING:
                    counter.add_metric([str(rank), kind], numbers.get(f"{kind}_{what}", 0))
            yield counter
        for name, text in _COUNTERS.items():
            yield _filled(
                CounterMetricFamily(f"horovod_{name}", text, labels=["rank"]), name, by_rank
            )
        for name, text in _GAUGES.items():
            yield _filled(
                GaugeMetricFamily(f"horovod_{name}", text, labels=["rank"]), name, by_rank
            )


def _filled(
    family: CounterMetricFamily | GaugeMetricFamily, name: str, by_rank: Mapping[int, Numbers]
) -> Metric:
    for rank, numbers in by_rank.items():
        family.add_metric([str(rank)], numbers.get(name, 0))
    return family
