"""An elastic job: workers of embedded agents on the cluster's nodes.

Elastic workers are children of actors and cannot use a queue of Ray, so they send their logs to a
store in the caller. They get the store's secret in their environment, which Ray sends to the
actors; the launcher sends calls in the clear. Every dictionary is sent with an authentication code
over a running number, and is unpickled only if the code is right.
"""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import ray
from ray.util.client import ray as ray_client
from ray.util.queue import Queue

from horovod.core.base.on_error import on_error
from horovod.launch.calls.by_value import dumps
from horovod.launch.calls.call import Call
from horovod.launch.embedded.agent_news import AgentDirectory
from horovod.launch.model.job_plan import ElasticPlan, JobPlan, Limits, OtherHosts
from horovod.launch.run.function import run_call
from horovod.ray import ray_logger
from horovod.ray.node_agents import AgentOptions, NodeReservations, cooldown_seconds, own_address
from horovod.ray.placement import Share, beside_caller
from horovod.ray.replies import Callback, WorkersFailedError, collect, first_cause, log_queue
from horovod.ray.settings import HostDiscovery, RaySettings
from horovod.rendezvous.base.authentication import CODE_BYTES, SECRET_BYTES, RecordCodes, derive_key
from horovod.rendezvous.store.client import StoreClient
from horovod.rendezvous.store.server import StoreServer

_log = logging.getLogger("horovod.ray")

_CONNECT_S = 30.0
_SECRET = "_HOROVOD_RAY_LOG_SECRET"
_PREFIX = "log/"

# The default limit: each worker needs a file descriptor in the caller.
_MOST_WORKERS = 256
_STATIC_ONLY = "is for a fixed number of workers (num_workers, num_hosts), not for min_workers"


class ElasticShape(NamedTuple):
    """The limits of a job, the resources of each worker, and the discovery of nodes."""

    limits: Limits
    share: Share
    discovery: HostDiscovery


class ElasticJob:
    """Every ``execute`` starts a job with new processes."""

    is_over = False

    def __init__(
        self, settings: RaySettings, shape: ElasticShape, environment: Mapping[str, Any]
    ) -> None:
        self._settings = settings
        self._shape = shape
        self._environment = {name: str(value) for name, value in environment.items()}
        self._make: Callable[[], Any] | None = None

    def start_executables(
        self, make: Callable[..., Any], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
    ) -> None:
        """Make an executable in every worker, before it runs a function."""
        self._make = partial(make, *(args or ()), **(kwargs or {}))

    def execute(self, func: Callable[[Any], Any], callbacks: Sequence[Callback]) -> list[Any]:
        """``func(executable)`` on all workers; see ``RayExecutor.run``."""
        packed = ray.cloudpickle.dumps((self._make, func))
        run = _Run(self._settings, self._shape, self._environment, packed)
        if ray_client.is_connected():
            return _run_in_cluster(run, callbacks)
        return run(callbacks)

    def begin(self, func: Callable[[Any], Any]) -> list[Any]:
        """Raises NotImplementedError."""
        raise NotImplementedError(f"run_remote {_STATIC_ONLY}")

    def execute_single(self, func: Callable[[Any], Any]) -> Any:
        """Raises NotImplementedError."""
        raise NotImplementedError(f"execute_single {_STATIC_ONLY}")

    def end(self) -> None:
        """Nothing exists between two runs."""


class _Run(NamedTuple):
    """One run, in a process of the cluster; ``packed`` has the pickled functions."""

    settings: RaySettings
    shape: ElasticShape
    environment: Mapping[str, str]
    packed: bytes

    def __call__(self, callbacks: Sequence[Callback]) -> list[Any]:
        directory = AgentDirectory()
        arrived: SimpleQueue[bytes | None] = SimpleQueue()
        with ExitStack() as stack:
            logs: LogSender | None = None
            extra: Mapping[str, str] = {}
            if callbacks:
                store = stack.enter_context(LogStore(own_address(self.settings.nics), arrived))
                logs, extra = LogSender(store.address), store.environment
            stack.enter_context(self._reservations(directory, extra))
            job = stack.enter_context(ThreadPoolExecutor(1, "horovod-job"))
            call = Call(_work, (self.packed, logs), {})
            results = job.submit(run_call, call, self._plan(), agents=directory)
            results.add_done_callback(lambda _: arrived.put(None))
            try:
                while (data := arrived.get()) is not None:
                    item = pickle.loads(data)
                    for callback in callbacks:
                        callback(item)
            except BaseException as error:  # a callback's, or Ctrl-C
                directory.give_up(f"{type(error).__name__} in the process that waits for it")
                raise
            return results.result()

    def _reservations(
        self, directory: AgentDirectory, extra: Mapping[str, str]
    ) -> NodeReservations:
        limits = self.shape.limits
        options = AgentOptions(
            launcher=own_address(self.settings.nics),
            secret=secrets.token_bytes(SECRET_BYTES),
            environment={**self.environment, **extra},
            cpus_per_worker=self.shape.share.cpus,
            ends_with_failure=limits.cooldown is None,
            interfaces=self.settings.nics,
        )
        return NodeReservations(
            directory,
            self.shape.discovery,
            self.shape.share,
            options,
            most=limits.max_np or _MOST_WORKERS,
            cooldown_s=cooldown_seconds(limits.cooldown),
            timeout_s=self.settings.timeout_s,
        )

    def _plan(self) -> JobPlan:
        limits = self.shape.limits
        return JobPlan(
            elastic=ElasticPlan(limits, most_results=limits.max_np or _MOST_WORKERS),
            others=OtherHosts(
                interfaces=self.settings.nics, start_timeout_s=self.settings.timeout_s
            ),
        )


def _work(packed: bytes, logs: LogSender | None) -> Any:
    """Run the function in a worker."""
    ray_logger.configure(logs)
    make, function = pickle.loads(packed)
    return function(make and make())


def _run_in_cluster(run: _Run, callbacks: Sequence[Callback]) -> list[Any]:
    """For a Ray client, which nodes may not reach: the launcher runs in a task of the cluster."""
    with log_queue(callbacks) as (queue, hand_over):
        task = ray.remote(**beside_caller(), max_retries=0)(_run_for_client)
        reference = task.remote(run, queue)
        try:
            results: list[Any] = collect([reference], meanwhile=hand_over)[0]
        except WorkersFailedError as failure:
            raise first_cause(failure.errors)[1] from None
        except BaseException:
            ray.cancel(reference)  # raises KeyboardInterrupt in the task
            raise
    return results


def _run_for_client(run: _Run, queue: Queue | None) -> list[Any]:
    return run([] if queue is None else [queue.put])


# One for the process of a worker.
_sending = threading.Lock()


@dataclass
class LogSender:
    """A queue for ``ray_logger.configure`` in a worker; threads may share it.

    The worker's environment has the secret, so a pickled sender has none.
    """

    address: tuple[str, int]
    _client: StoreClient | None = None

    def put(self, item: Any) -> None:
        """Send a dictionary. Raises ValueError if it takes more than about 64 KiB."""
        data = dumps(item)
        with _sending:
            client = self._connected()
            with on_error(client.close):  # the next number is unknown then
                client.set(self._key, self._codes.next(data) + data)

    def _connected(self) -> StoreClient:
        if self._client is None or self._client.is_closed:
            secret = bytes.fromhex(os.environ[_SECRET])
            self._client = StoreClient(self.address, secret, timeout_s=_CONNECT_S)
            self._key = _PREFIX + secrets.token_hex(8)
            self._codes = _codes_of(secret, self._key)
        return self._client


class LogStore:
    """Puts the pickled dictionaries of workers into ``arrived``, within ``with``.

    A dictionary is there before the worker's ``log`` returns. ``environment`` is for the workers.
    """

    def __init__(self, host: str, arrived: SimpleQueue[bytes | None]) -> None:
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._arrived = arrived
        self._codes: dict[str, RecordCodes] = {}
        self._server = StoreServer(self._secret, addresses=[(host, 0)], on_set=self._take)
        self.address = self._server.address

    @property
    def environment(self) -> Mapping[str, str]:
        """The variable with the secret; Ray sends it to the workers."""
        return {_SECRET: self._secret.hex()}

    def __enter__(self) -> LogStore:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _take(self, key: str, value: bytes) -> None:
        codes = self._codes.setdefault(key, _codes_of(self._secret, key))
        code, data = value[:CODE_BYTES], value[CODE_BYTES:]
        if codes.is_next(code, data):
            self._arrived.put(data)
        else:
            _log.error("ignored a log of a worker (%s): it was altered on the way", key)


def _codes_of(secret: bytes, key: str) -> RecordCodes:
    return RecordCodes(derive_key(secret, b"horovod log", key.encode()))
