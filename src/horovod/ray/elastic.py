"""``ElasticRayExecutor``, the older form of ``RayExecutor`` with ``min_workers``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.launch.model.hosts import chosen_interfaces
from horovod.launch.model.job_plan import Limits
from horovod.ray.elastic_job import ElasticJob
from horovod.ray.elastic_v2 import TestDiscovery as _TestDiscovery
from horovod.ray.executor import check_range, elastic_shape, gpus_of
from horovod.ray.placement import NodeDiscovery, Share
from horovod.ray.replies import Callback
from horovod.ray.settings import HostDiscovery, RaySettings

__all__ = ["ElasticRayExecutor", "RayHostDiscovery", "TestDiscovery"]

# Fields of the original's settings that have no effect on Ray.
_WITHOUT_EFFECT = {
    *("binding_args", "elastic", "extra_mpi_args", "key", "num_proc", "output_filename"),
    *("run_func_mode", "ssh_port", "start_timeout", "tcp_flag", "verbose"),
}


class RayHostDiscovery(NodeDiscovery):
    """The nodes of the cluster with room for workers that need these resources each."""

    def __init__(
        self, use_gpu: bool = False, cpus_per_slot: int = 1, gpus_per_slot: int = 1
    ) -> None:
        super().__init__(Share(cpus_per_slot, gpus_per_slot if use_gpu else 0))


class TestDiscovery(_TestDiscovery):
    """See ``horovod.ray.elastic_v2.TestDiscovery``; resources are those of a slot."""

    __test__ = False

    def __init__(
        self,
        min_hosts: int,
        max_hosts: int,
        change_frequency_s: float,
        use_gpu: bool = False,
        cpus_per_slot: int = 1,
        gpus_per_slot: int = 1,
    ) -> None:
        super().__init__(
            min_hosts, max_hosts, change_frequency_s, use_gpu, cpus_per_slot, gpus_per_slot
        )


@dataclass
class ElasticRaySettings(RaySettings):
    """Settings of an elastic job."""

    min_num_proc: int = 1
    max_num_proc: int | None = None
    reset_limit: int | None = None
    elastic_timeout: float = 600
    cooldown_range: tuple[float, float] | None = None


class ElasticRayExecutor:
    """Runs a function on workers that come and go with the cluster's nodes.

    Deprecated: ``RayExecutor(min_workers=...)`` does the same.

    Args:
        settings: from ``create_settings``.
        use_gpu, cpus_per_slot, gpus_per_slot: the resources of each worker; with ``use_gpu`` one
            GPU by default.
        env_vars: variables that are added to the workers' environment.
        override_discovery: find nodes in the cluster and ignore ``settings.discovery``.

    Raises:
        ValueError: the arguments contradict each other.
    """

    def __init__(
        self,
        settings: ElasticRaySettings,
        use_gpu: bool = False,
        cpus_per_slot: int = 1,
        gpus_per_slot: int | None = None,
        env_vars: Mapping[str, Any] | None = None,
        override_discovery: bool = True,
    ) -> None:
        warnings.warn(
            "ElasticRayExecutor is deprecated; use RayExecutor with min_workers",
            DeprecationWarning,
            stacklevel=2,
        )
        share = Share(cpus_per_slot, gpus_of(use_gpu, gpus_per_slot, "gpus_per_slot"))
        least, most = settings.min_num_proc, settings.max_num_proc
        check_range("min_num_proc", least, "max_num_proc", most)
        ends = (settings.reset_limit, settings.elastic_timeout, settings.cooldown_range)
        limits = Limits(least, least, most, *ends)
        shape = elastic_shape(settings, limits, share, override_discovery)
        self._job = ElasticJob(settings, shape, env_vars or {})
        self._is_started = False

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = 600,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        nics: str | Iterable[str] | None = None,
        min_np: int | None = None,
        max_np: int | None = None,
        *,
        discovery: HostDiscovery | None = None,
        cooldown_range: tuple[float, float] | None = None,
        placement_group_timeout_s: float = 100,
        **kwargs: Any,
    ) -> ElasticRaySettings:
        """The limits of the job; ``RayExecutor`` explains them.

        ``min_np`` and ``max_np`` are deprecated names. ``kwargs`` are other settings of the
        original, which have no effect; a warning names them.

        Raises:
            TypeError: one of ``kwargs`` is no setting of the original.
        """
        if unknown := sorted(kwargs.keys() - _WITHOUT_EFFECT):
            raise TypeError(f"create_settings has no parameters {', '.join(unknown)}")
        for name in kwargs:
            warnings.warn(f"create_settings: {name} has no effect in a job on Ray", stacklevel=2)
        for old, value in (("min_np", min_np), ("max_np", max_np)):
            if value is not None:
                new = old.replace("np", "num_proc")
                warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, 2)
        return ElasticRaySettings(
            timeout_s=timeout_s,
            placement_group_timeout_s=placement_group_timeout_s,
            ssh_identity_file=ssh_identity_file,
            nics=chosen_interfaces(nics),
            discovery=discovery,
            min_num_proc=min_num_proc if min_np is None else min_np,
            max_num_proc=max_num_proc if max_np is None else max_np,
            reset_limit=reset_limit,
            elastic_timeout=elastic_timeout,
            cooldown_range=cooldown_range,
        )

    def start(self) -> None:
        """Allow ``run``, which starts the workers."""
        self._is_started = True

    def run(
        self, worker_fn: Callable[[], Any], callbacks: Sequence[Callback] | None = None
    ) -> list[Any]:
        """``worker_fn()`` on every worker; the results of the last world's workers, by rank.

        ``callbacks`` get every dictionary that workers give to ``ray_logger.log``, while they run.

        Raises:
            RuntimeError: the job cannot go on, or ``start`` has not been called.
        """
        if not self._is_started:
            raise RuntimeError("ElasticRayExecutor: call start() first")
        return self._job.execute(lambda _: worker_fn(), callbacks or ())
