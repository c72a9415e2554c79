"""Discovery of nodes for an elastic ``RayExecutor``."""

from __future__ import annotations

import random
import time

from horovod.core.base.replaced import names_of
from horovod.ray.placement import NodeDiscovery, Share

__all__ = ["RayHostDiscovery", "TestDiscovery"]

__getattr__ = names_of(__name__)


class RayHostDiscovery(NodeDiscovery):
    """The nodes of the cluster with room for workers that need these resources each."""

    def __init__(
        self, use_gpu: bool = False, cpus_per_worker: int = 1, gpus_per_worker: int = 1
    ) -> None:
        super().__init__(Share(cpus_per_worker, gpus_per_worker if use_gpu else 0))


class TestDiscovery(RayHostDiscovery):
    """Simulates nodes that come and go, to test a script; shows ``min_hosts`` to ``max_hosts``.

    Every ``change_frequency_s`` seconds a random node of the cluster appears or disappears. For
    ``settings.discovery``, with ``override_discovery=False``.
    """

    __test__ = False

    def __init__(
        self,
        min_hosts: int,
        max_hosts: int,
        change_frequency_s: float,
        use_gpu: bool = False,
        cpus_per_worker: int = 1,
        gpus_per_worker: int = 1,
    ) -> None:
        super().__init__(use_gpu, cpus_per_worker, gpus_per_worker)
        self._min_hosts = min_hosts
        self._max_hosts = max_hosts
        self._change_frequency_s = change_frequency_s
        self._shown: list[str] = []
        self._change_at = 0.0

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """See ``HostDiscovery``."""
        found = super().find_available_hosts_and_slots()
        self._shown = [name for name in self._shown if name in found]
        hidden = [name for name in found if name not in self._shown]
        while hidden and len(self._shown) < self._min_hosts:
            self._shown.append(hidden.pop(0))
        now = time.monotonic()
        if now >= self._change_at:
            if self._change_at:
                self._change(hidden)
            self._change_at = now + self._change_frequency_s
        return {name: found[name] for name in self._shown}

    def _change(self, hidden: list[str]) -> None:
        can_come = bool(hidden) and len(self._shown) < self._max_hosts
        can_go = len(self._shown) > self._min_hosts
        if can_come and (not can_go or random.random() < 0.5):
            self._shown.append(random.choice(hidden))
        elif can_go:
            self._shown.remove(random.choice(self._shown))
