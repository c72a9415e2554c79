"""The settings of a job for ``gloo_run``, ``mpi_run`` and ``js_run``."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from horovod.errors import TimeoutException
from horovod.launch.compat.arguments import HorovodArgs


class Timeout:
    """``timeout`` seconds from now; ``message`` may name ``{activity}`` and ``{timeout}``."""

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout_s = timeout
        self._until = time.monotonic() + timeout
        self._message = message

    def remaining(self) -> float:
        """The seconds that are left, at least 0."""
        return max(0.0, self._until - time.monotonic())

    def timed_out(self) -> bool:
        """Whether the time is over."""
        return self.remaining() == 0.0

    def check_time_out_for(self, activity: str) -> None:
        """Raise TimeoutException, with the message, if the time is over."""
        if self.timed_out():
            raise TimeoutException(self._message.format(activity=activity, timeout=self._timeout_s))


@dataclass(eq=False, repr=False, kw_only=True)
class BaseSettings:
    """``start_timeout`` is in seconds, or a ``Timeout``; the other names are horovodrun's.

    ``key`` has no effect: it is the secret of upstream's services.
    """

    num_proc: int | None = None
    verbose: int = 0
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    extra_mpi_args: str | None = None
    tcp_flag: bool | None = None
    binding_args: str | None = None
    key: bytes | None = None
    start_timeout: float | Timeout | None = None
    output_filename: str | None = None
    run_func_mode: bool | None = None
    nics: Collection[str] | None = None
    elastic: bool = False
    prefix_output_with_timestamp: bool = False


@dataclass(eq=False, repr=False)
class Settings(BaseSettings):
    """A job of fixed size on ``hosts`` of the form ``name:slots[,name:slots...]``."""

    hosts: str | None = None


@dataclass(eq=False, repr=False)
class ElasticSettings(BaseSettings):
    """An elastic job on the hosts that ``discovery`` finds."""

    discovery: Any
    min_num_proc: int | None = None
    max_num_proc: int | None = None
    elastic_timeout: float | None = None
    reset_limit: int | None = None
    cooldown_range: tuple[int, int] | None = None
    elastic: bool = field(default=True, init=False)


def arguments_of(
    settings: BaseSettings, nics: Collection[str] | None, command: str | list[str]
) -> HorovodArgs:
    """The job of fixed size that ``settings`` describe.

    Raises:
        ValueError: the job is elastic.
        TimeoutException: the start timeout is over.
    """
    if settings.elastic:
        raise ValueError(
            "settings of an elastic job: start it with horovodrun --host-discovery-script, "
            "horovod.run or horovod.ray (docs/migrating.md)"
        )
    args, timeout = HorovodArgs(), settings.start_timeout
    if isinstance(timeout, Timeout):
        timeout.check_time_out_for("processes to start")
    args.num_proc = settings.num_proc or _slots_of(settings)
    args.hosts = getattr(settings, "hosts", None)
    args.verbose = bool(settings.verbose)
    args.ssh_port, args.ssh_identity_file = settings.ssh_port, settings.ssh_identity_file
    args.start_timeout = timeout.remaining() if isinstance(timeout, Timeout) else timeout
    args.output_filename = settings.output_filename
    args.prefix_output_with_timestamp = settings.prefix_output_with_timestamp
    args.nics = nics or settings.nics or None
    args.command = command
    return args


def _slots_of(settings: BaseSettings) -> int:
    from horovod.launch.model.hosts import parse_hosts

    hosts = getattr(settings, "hosts", None)
    return sum(host.slots for host in parse_hosts(hosts)) if hosts else 1
