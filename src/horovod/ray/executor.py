"""``RayExecutor``: a job on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from horovod.core.base.on_error import on_error
from horovod.launch.model.argument_checks import check_count
from horovod.launch.model.hosts import chosen_interfaces
from horovod.launch.model.job_plan import Limits
from horovod.ray.elastic_job import ElasticJob, ElasticShape
from horovod.ray.placement import NodeDiscovery, Shape, Share
from horovod.ray.replies import Callback
from horovod.ray.settings import RaySettings, write_identity
from horovod.ray.static_job import StaticJob


class RayExecutor:
    """Runs functions on workers of a Ray cluster, which form a Horovod world.

    ``ray.init()`` comes first. Workers are actors: ``start`` makes them, ``run`` and ``execute``
    may be called again and again, ``shutdown`` ends them. Functions call ``hvd.init()``.

    With ``min_workers`` the job is elastic: workers come and go with the cluster's nodes, and the
    function uses a state and ``hvd.elastic.run``, as for ``horovodrun --min-np``. Then each ``run``
    starts the workers, as child processes of an actor on each node.

    Args:
        settings: from ``create_settings``.
        num_workers: workers, on as few nodes as possible; or
        num_hosts: nodes, each with ``num_workers_per_host`` workers.
        cpus_per_worker, use_gpu, gpus_per_worker: the resources of each worker; with ``use_gpu``
            one GPU by default. A worker sees the GPUs of all workers of its node, and selects its
            own by ``hvd.local_rank()``.
        use_current_placement_group: use the resources of the placement group of this process, if
            it has one, as a trial of Ray Tune does. Elastic jobs use none.
        min_workers, max_workers: the limits of an elastic job; without ``max_workers`` it uses all
            nodes, up to 256 workers.
        reset_limit, elastic_timeout: end an elastic job after this number of changes, or after this
            number of seconds without enough workers.
        cooldown_range: ``(1, 60)``: use a node again after a worker failed there, between 1 and 60
            seconds later; by default never.
        override_discovery: find nodes in the cluster and ignore ``settings.discovery``.
        resources_per_worker: further resources of each worker, by Ray's names.

    Raises:
        ValueError: the arguments contradict each other.
    """

    def __init__(
        self,
        settings: RaySettings,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: tuple[float, float] | None = None,
        elastic_timeout: float = 600,
        override_discovery: bool = True,
        *,
        resources_per_worker: Mapping[str, float] | None = None,
    ) -> None:
        self._settings = settings
        self._use_current = use_current_placement_group
        self._job: StaticJob | ElasticJob | None = None
        gpus = gpus_of(use_gpu, gpus_per_worker, "gpus_per_worker")
        share = Share(cpus_per_worker, gpus, resources_per_worker or {})
        self._shape: Shape | ElasticShape
        if min_workers is None:
            if max_workers is not None:
                raise ValueError(f"max_workers={max_workers} needs min_workers")
            self._shape = _shape(num_workers, num_hosts, num_workers_per_host, share)
            return
        for name, value in (("num_workers", num_workers), ("num_hosts", num_hosts)):
            if value is not None:
                raise ValueError(f"Both `min_workers` and `{name}` provided.")
        check_range("min_workers", min_workers, "max_workers", max_workers)
        ends = (reset_limit, elastic_timeout, cooldown_range)
        limits = Limits(min_workers, min_workers, max_workers, *ends)
        self._shape = elastic_shape(settings, limits, share, override_discovery)

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: str | Iterable[str] | None = None,
    ) -> RaySettings:
        """Time limits for the start of actors and for a placement group, in seconds.

        ``nics`` are the network interfaces to use. ``ssh_str`` is written to ``ssh_identity_file``
        if that file does not exist; Horovod on Ray does not use ssh.
        """
        if ssh_str and ssh_identity_file:
            write_identity(ssh_identity_file, ssh_str)
        nics = chosen_interfaces(nics)
        return RaySettings(timeout_s, placement_group_timeout_s, ssh_identity_file, nics)

    @property
    def num_workers(self) -> int:
        """The number of workers; the least number in an elastic job."""
        shape = self._shape
        return shape.limits.min_np if isinstance(shape, ElasticShape) else shape.workers

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the workers, and make an ``executable_cls(*args, **kwargs)`` in each, if given.

        Raises:
            RuntimeError: the workers run already.
            TimeoutError: the cluster has no room for them, or they do not start in time.
            ValueError: the current placement group does not have the resources of
                ``num_workers_per_host`` workers on each node.
        """
        if self._job is not None and not self._job.is_over:
            raise RuntimeError("RayExecutor.start: the workers have been started; shutdown() first")
        job = self._job = self._new_job(extra_env_vars or {})
        if executable_cls is not None:
            with on_error(self.shutdown):
                job.start_executables(executable_cls, executable_args, executable_kwargs)

    def _new_job(self, environment: Mapping[str, Any]) -> StaticJob | ElasticJob:
        if isinstance(self._shape, ElasticShape):
            return ElasticJob(self._settings, self._shape, environment)
        return StaticJob(self._settings, self._shape, environment, use_current=self._use_current)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> list[Any]:
        """``fn(*args, **kwargs)`` on every worker; the results by rank.

        ``callbacks`` get every dictionary that workers give to ``ray_logger.log``, while they run.

        The results of an elastic job are those of the last world's workers.

        Raises:
            ray.exceptions.RayTaskError: the error of the first worker that failed; it is of the
                original type, too. The other workers' collectives fail, and they can go on.
            ray.exceptions.RayActorError: a worker died; the text names its rank and node. The job
                is over, its resources are free.
            RuntimeError: an elastic job cannot go on; as from ``horovod.run``.
        """
        return self._current().execute(_without_executable(fn, args, kwargs), callbacks or ())

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """As ``run``, without waiting: references to the results, by rank.

        If a worker dies, its reference raises Ray's error; ``shutdown`` then frees the resources.

        Raises:
            NotImplementedError: the job is elastic.
        """
        return self._current().begin(_without_executable(fn, args, kwargs))

    def execute(
        self, fn: Callable[[Any], Any], callbacks: Sequence[Callback] | None = None
    ) -> list[Any]:
        """``fn(executable)`` on every worker; otherwise as ``run``."""
        return self._current().execute(fn, callbacks or ())

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """``fn(executable)`` on rank 0 only. Raises NotImplementedError if the job is elastic."""
        return self._current().execute_single(fn)

    def shutdown(self) -> None:
        """End the workers and free their resources; ``start`` may follow."""
        job, self._job = self._job, None
        if job is not None:
            job.end()

    def _current(self) -> StaticJob | ElasticJob:
        if self._job is None or self._job.is_over:
            raise RuntimeError("RayExecutor: there are no workers; call start() first")
        return self._job


def _without_executable(
    fn: Callable[..., Any], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> Callable[[Any], Any]:
    # No method: a reference to the executor would be pickled, too.
    given, named = tuple(args or ()), dict(kwargs or {})
    return lambda _: fn(*given, **named)


def gpus_of(use_gpu: bool, each: int | None, name: str) -> int:
    """The number of GPUs of each worker. Raises ValueError."""
    if each is not None and not use_gpu:
        raise ValueError(f"{name}={each} needs use_gpu=True")
    if each is not None and each < 1:
        raise ValueError(f"{name}={each}: expected at least 1")
    return each or 1 if use_gpu else 0


def check_range(min_name: str, least: int, max_name: str, most: int | None) -> None:
    """Raise ValueError unless a job can have ``least`` to ``most`` workers."""
    check_count(min_name, least, "workers")
    if most is not None and most < least:
        raise ValueError(f"{max_name}={most}: expected at least {least}, which is {min_name}")


def elastic_shape(
    settings: RaySettings, limits: Limits, share: Share, override_discovery: bool
) -> ElasticShape:
    """The shape of an elastic job; without ``override_discovery`` the settings' discovery is used.

    Raises:
        ValueError: the settings have none.
    """
    discovery = NodeDiscovery(share) if override_discovery else settings.discovery
    if discovery is None:
        raise ValueError("override_discovery=False needs settings.discovery")
    return ElasticShape(limits, share, discovery)


def _shape(num_workers: int | None, num_hosts: int | None, per_host: int, share: Share) -> Shape:
    if num_workers is None and num_hosts is None:
        raise ValueError("RayExecutor: expected num_workers, or num_hosts")
    if num_workers is not None and num_hosts is not None:
        # The type is documented.
        raise AssertionError("RayExecutor: expected num_workers or num_hosts, not both")
    if num_hosts is not None:
        hosts = check_count("num_hosts", num_hosts, "hosts")
        each = check_count("num_workers_per_host", per_host, "workers")
        return Shape(hosts * each, hosts, share)
    return Shape(check_count("num_workers", num_workers, "workers"), 0, share)
