"""``RayExecutor``: a job on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from horovod.launch.model.argument_checks import check_count
from horovod.launch.model.job_plan import Limits
from horovod.ray.callbacks import Callback
from horovod.ray.discovery import NodeDiscovery
from horovod.ray.elastic_job import ElasticJob, ElasticShape
from horovod.ray.placement import Shape, Share
from horovod.ray.settings import HostDiscovery, RaySettings, interfaces_of, write_identity
from horovod.ray.static_job import StaticJob

__all__ = ["RayExecutor", "check_range", "elastic_shape", "gpus_of"]


class _Job(Protocol):
    """What executors do; see ``StaticJob`` and ``ElasticJob``."""

    @property
    def is_over(self) -> bool: ...

    def start_executables(
        self,
        make: Callable[..., Any],
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
    ) -> None: ...

    def execute(self, func: Callable[[Any], Any], callbacks: Sequence[Callback]) -> list[Any]: ...

    def execute_single(self, func: Callable[[Any], Any]) -> Any: ...

    def begin(self, func: Callable[[Any], Any]) -> list[Any]: ...

    def end(self) -> None: ...


class RayExecutor:
    """Runs functions on workers of a Ray cluster, which are a Horovod world together.

    ``ray.init()`` comes first. Workers are actors: ``start`` makes them, ``run`` and ``execute``
    may be called again and again, ``shutdown`` ends them. Functions call ``hvd.init()``.

    With ``min_workers`` the job is elastic: workers come and go with the cluster's nodes, and the
    function is as for ``horovodrun --min-np``, with a state and ``hvd.elastic.run``. Then workers
    are processes of their own, children of an actor on each node, and begin with each ``run``.

    Args:
        settings: from ``create_settings``.
        num_workers: workers, on as few nodes as possible; or
        num_hosts: nodes, each with ``num_workers_per_host`` workers.
        cpus_per_worker, use_gpu, gpus_per_worker: what each worker has; with ``use_gpu`` one GPU
            if not said. Each sees the GPUs of all workers of its node, and takes its own by
            ``hvd.local_rank()``.
        use_current_placement_group: use the resources of the placement group that this process
            runs in, if it runs in one, such as a trial of Ray Tune. Elastic jobs use none.
        min_workers, max_workers: an elastic job begins, and goes on, with at least and at most so
            many; without ``max_workers`` on all nodes, up to 256.
        reset_limit, elastic_timeout: end such a job after so many changes, or so many seconds
            without enough workers.
        cooldown_range: ``(1, 60)``: use a node where a worker failed again after a while between
            these seconds; default never.
        override_discovery: look for nodes in the cluster, whatever ``settings.discovery`` says.
        resources_per_worker: further resources that each worker has, by Ray's names.

    Raises:
        ValueError: the numbers contradict each other.
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
        self._job: _Job | None = None
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
        limits = Limits(
            min_workers, min_workers, max_workers, reset_limit, elastic_timeout, cooldown_range
        )
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
        """How long actors may take to start, and a placement group to be ready; in seconds.

        ``nics`` are the network interfaces to use. ``ssh_str`` is written to
        ``ssh_identity_file`` if that does not exist; nothing here uses ssh.
        """
        if ssh_str and ssh_identity_file:
            write_identity(ssh_identity_file, ssh_str)
        nics = interfaces_of(nics)
        return RaySettings(timeout_s, placement_group_timeout_s, ssh_identity_file, nics)

    @property
    def num_workers(self) -> int:
        """How many workers there are, or will be; in an elastic job at least."""
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
            RuntimeError: they run already.
            TimeoutError: the cluster has no room for them, or they do not start in time.
            ValueError: the current placement group has not so many workers' resources on each node
                as ``num_workers_per_host`` says.
        """
        if self._job is not None and not self._job.is_over:
            raise RuntimeError("RayExecutor.start: the workers have been started; shutdown() first")
        job = self._job = self._new_job(extra_env_vars or {})
        if executable_cls is not None:
            try:
                job.start_executables(executable_cls, executable_args, executable_kwargs)
            except BaseException:
                self.shutdown()
                raise

    def _new_job(self, environment: Mapping[str, Any]) -> _Job:
        if isinstance(self._shape, ElasticShape):
            return ElasticJob(self._settings, self._shape, environment)
        return StaticJob(
            self._settings,
            self._shape,
            use_current_placement_group=self._use_current,
            environment=environment,
        )

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> list[Any]:
        """``fn(*args, **kwargs)`` on every worker; the results by rank.

        ``callbacks`` get every dictionary that workers give to ``ray_logger.log``, while they run.

        Of an elastic job the results are those of the last world's workers.

        Raises:
            ray.exceptions.RayTaskError: what the first worker that failed has raised; it is of the
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

        Of a worker that dies Ray's error tells; ``shutdown`` then frees the resources.

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
        """``fn(executable)`` on rank 0 alone. NotImplementedError if the job is elastic."""
        return self._current().execute_single(fn)

    def shutdown(self) -> None:
        """End the workers and free their resources; ``start`` may follow."""
        job, self._job = self._job, None
        if job is not None:
            job.end()

    def _current(self) -> _Job:
        if self._job is None or self._job.is_over:
            raise RuntimeError("RayExecutor: there are no workers; call start() first")
        return self._job


def _without_executable(
    fn: Callable[..., Any], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> Callable[[Any], Any]:
    # Not a method's: what it refers to travels to the workers.
    given, named = tuple(args or ()), dict(kwargs or {})
    return lambda _: fn(*given, **named)


def gpus_of(use_gpu: bool, each: int | None, name: str) -> int:
    """How many GPUs each worker has. Raises ValueError."""
    if each is not None and not use_gpu:
        raise ValueError(f"{name}={each} needs use_gpu=True")
    if each is not None and each < 1:
        raise ValueError(f"{name}={each}: expected at least 1")
    return each or 1 if use_gpu else 0


def check_range(min_name: str, least: int, max_name: str, most: int | None) -> None:
    """Whether a job can have ``least`` to ``most`` workers. Raises ValueError."""
    check_count(min_name, least, "workers")
    if most is not None and most < least:
        raise ValueError(f"{max_name}={most}: expected at least {least}, which is {min_name}")


def elastic_shape(
    settings: RaySettings, limits: Limits, share: Share, override_discovery: bool
) -> ElasticShape:
    """An elastic job; without ``override_discovery`` on the nodes that the settings' one finds.

    Raises:
        ValueError: they have none.
    """
    discovery: HostDiscovery | None = NodeDiscovery(share)
    if not override_discovery:
        discovery = settings.discovery
    if discovery is None:
        raise ValueError("override_discovery=False needs settings.discovery")
    return ElasticShape(limits, share, discovery)


def _shape(num_workers: int | None, num_hosts: int | None, per_host: int, share: Share) -> Shape:
    if num_workers is None and num_hosts is None:
        raise ValueError("RayExecutor: expected num_workers, or num_hosts")
    if num_workers is not None and num_hosts is not None:
        # The documented type.
        raise AssertionError("RayExecutor: expected num_workers or num_hosts, not both")
    if num_hosts is not None:
        hosts = check_count("num_hosts", num_hosts, "hosts")
        each = check_count("num_workers_per_host", per_host, "workers")
        return Shape(hosts * each, hosts, share)
    return Shape(check_count("num_workers", num_workers, "workers"), 0, share)
