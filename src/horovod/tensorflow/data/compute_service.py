"""tf.data service between two jobs: compute workers preprocess data, ranks train.

The compute job (``compute_worker``) writes a config file; the training job reads it and asks for
the dispatcher of each rank:

    config = TfDataServiceConfig.read(path, wait_for_file_creation=True)
    with tf_data_service(config, hvd.rank()) as address:
        dataset = dataset.apply(tf.data.experimental.service.distribute(
            "distributed_epoch", service=address, job_name="epoch"))

There is one dispatcher, or one per training rank; each has ``workers_per_dispatcher`` workers.
Dispatchers run in the compute job, or in the training ranks. Both jobs exchange addresses through
``registry``. TensorFlow's servers have no authentication: see docs/tensorflow.md.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from horovod.core import world
from horovod.core.base.own_files import read_own, replacing
from horovod.core.compatibility import rank_and_size
from horovod.tensorflow.data.registry import Addresses, ComputeClient

MOST_CONFIG_BYTES = 1 << 20
_SIDES = ("compute", "training")
_job_numbers = itertools.count()  # for the names of shared jobs, which are equal on all ranks


@dataclass(frozen=True)
class TfDataServiceConfig:
    """The addresses and settings of a compute job, for a training job.

    dispatchers: 1, or the number of training ranks.
    workers_per_dispatcher: compute workers of each.
    dispatcher_side: where dispatchers run, ``"compute"`` or ``"training"``.
    addresses: the registry's ``(host, port)`` pairs by interface.
    key: the secret of the registry.
    timeout: seconds to wait for dispatchers and workers.

    Raises ValueError for numbers below 1 and for unknown sides.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Addresses
    key: bytes = field(repr=False)
    timeout: float = 60

    def __post_init__(self) -> None:
        if self.dispatcher_side not in _SIDES:
            raise ValueError(f"dispatcher_side {self.dispatcher_side!r}: expected one of {_SIDES}")
        for name in ("dispatchers", "workers_per_dispatcher"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected 1 or more")

    def to_dict(self) -> dict[str, Any]:
        """The fields as values for JSON; the key in base64."""
        return {
            **vars(self),
            "addresses": {name: [list(at) for at in ats] for name, ats in self.addresses.items()},
            "key": base64.b64encode(self.key).decode(),
        }

    @staticmethod
    def from_dict(d: Mapping[str, Any]) -> TfDataServiceConfig:
        """The inverse of ``to_dict``."""
        pairs = {
            name: [(str(host), int(port)) for host, port in addresses]
            for name, addresses in d["addresses"].items()
        }
        key = base64.b64decode(d["key"], validate=True)
        return TfDataServiceConfig(**{**d, "addresses": pairs, "key": key})

    def write(self, filename: str | os.PathLike[str]) -> None:
        """Write a file that only this user can read; it is replaced atomically."""
        with replacing(Path(filename)) as file:
            file.write(json.dumps(self.to_dict()).encode())

    @staticmethod
    def read(
        filename: str | os.PathLike[str], wait_for_file_creation: bool = False
    ) -> TfDataServiceConfig:
        """The config in ``filename``.

        With ``wait_for_file_creation`` it checks each second until the file exists, without limit.

        Raises:
            PermissionError: the file is no regular file of this user.
            OSError: the file cannot be read.
        """
        path = Path(filename)
        while wait_for_file_creation and not path.exists():
            time.sleep(1)
        return TfDataServiceConfig.from_dict(json.loads(read_own(path, MOST_CONFIG_BYTES)))

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """A connection to the registry, such as for ``shutdown``; ``verbose=2`` prints calls."""
        return ComputeClient(self.addresses, self.key, verbose=verbose)

    def workers_of(self, dispatcher: int) -> range:
        """The numbers of a dispatcher's compute workers."""
        first = dispatcher * self.workers_per_dispatcher
        return range(first, first + self.workers_per_dispatcher)


@contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """The address of training rank ``rank``'s dispatcher, once all its workers serve.

    With dispatchers on the training side, rank 0 or every rank starts one, which runs until the end
    of ``with``. There rank 0's dispatcher waits for the other ranks to leave ``with`` (30 s at
    most). A compute job serves one such ``with`` only.

    Raises:
        TimeoutException: dispatcher or workers did not start within the config's timeout.
        ConnectionError: no compute job at the config's addresses, or one with another key.
        ValueError: there are several dispatchers, but none for this rank.
    """
    dispatcher = _dispatcher_of(compute_config, rank)
    with compute_config.compute_client() as client:
        if compute_config.dispatcher_side == "compute":
            yield _serving_address(client, compute_config, dispatcher)
        elif rank != dispatcher:
            yield _serving_address(client, compute_config, dispatcher)
            client.leave(f"rank {rank}")
        else:
            with _dispatch_server(client, dispatcher):
                yield _serving_address(client, compute_config, dispatcher)
                client.wait_for_leaving(_others_at(compute_config, rank))


def send_to_data_service(
    dataset: Any,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: Any = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> Any:
    """``dataset``, produced by the workers of training rank ``rank``'s dispatcher.

    The transformations of ``dataset`` run on the compute workers; transformations of the result run
    on this rank. Blocks until dispatcher and workers serve. The import of this module also makes it
    a method of ``tf.data.Dataset``.

    size: number of training ranks.
    processing_mode: as in ``tf.data.experimental.service.distribute``.
    reuse_dataset: the ranks of one dispatcher share the elements; otherwise each rank gets all of
        them. The n-th such call of every rank has to be for the same dataset.
    round_robin: the ranks get elements strictly in turn; the dataset must be infinite.

    Raises:
        RuntimeError: dispatchers are on the training side: use ``tf_data_service``.
        ValueError: ``round_robin`` without ``reuse_dataset`` or ``size``.
        TimeoutException, ConnectionError: as ``tf_data_service``.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError(
            "send_to_data_service: dispatchers run in the training job; use tf_data_service and "
            "tf.data.experimental.service.distribute"
        )
    if round_robin and not reuse_dataset:
        raise ValueError("send_to_data_service: round_robin needs reuse_dataset=True")
    if round_robin and size is None:
        raise ValueError("send_to_data_service: round_robin needs the number of ranks in size")
    with tf_data_service(compute_config, rank) as address:
        turns = _turns(compute_config, rank, size) if round_robin else {}
        return dataset.apply(
            tf.data.experimental.service.distribute(
                processing_mode=processing_mode,
                service=address,
                job_name=f"horovod-{next(_job_numbers)}" if reuse_dataset else None,
                **turns,
            )
        )


tf.data.Dataset.send_to_data_service = send_to_data_service


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """Run the compute worker with the number of this process's rank; blocks until ``shutdown``.

    Starts a worker of tf.data and, with dispatchers on the compute side, a dispatcher in the first
    worker of each dispatcher. All ranks of the compute job must call it.

    Raises:
        TimeoutException: this worker's dispatcher was not registered in time.
        ConnectionError: the registry has ended.
        ValueError: there is no dispatcher for this rank.
    """
    worker, _ = rank_and_size()
    dispatcher = worker // compute_config.workers_per_dispatcher
    if dispatcher >= compute_config.dispatchers:
        raise ValueError(
            f"compute worker {worker}: {compute_config.dispatchers} dispatcher(s) with "
            f"{compute_config.workers_per_dispatcher} worker(s) each do not need it"
        )
    is_first = worker == compute_config.workers_of(dispatcher)[0]
    with compute_config.compute_client() as client:
        if compute_config.dispatcher_side == "compute" and is_first:
            with _dispatch_server(client, dispatcher):
                _work(client, compute_config, worker, dispatcher)
                others = [f"worker {each}" for each in compute_config.workers_of(dispatcher)[1:]]
                client.wait_for_leaving(others)
        else:
            _work(client, compute_config, worker, dispatcher)
        client.leave(f"worker {worker}")


def _work(client: ComputeClient, config: TfDataServiceConfig, worker: int, dispatcher: int) -> None:
    """Serve data until ``shutdown`` is called."""
    address = client.wait_for_dispatcher(dispatcher, config.timeout)
    service = tf.data.experimental.service
    server = service.WorkerServer(
        service.WorkerConfig(
            dispatcher_address=address.removeprefix("grpc://"),
            heartbeat_interval_ms=1000,
            dispatcher_timeout_ms=int(config.timeout * 1000),
        )
    )
    try:
        client.register_worker(worker)
        client.wait_for_shutdown()
    finally:
        server._stop()


@contextmanager
def _dispatch_server(client: ComputeClient, dispatcher: int) -> Iterator[None]:
    """A registered dispatcher on a free port, within ``with``."""
    service = tf.data.experimental.service
    server = service.DispatchServer(service.DispatcherConfig(port=0))
    try:
        client.register_dispatcher(dispatcher, server.target)
        yield
    finally:
        server._stop()


def _dispatcher_of(config: TfDataServiceConfig, rank: int) -> int:
    if config.dispatchers == 1:
        return 0
    if not 0 <= rank < config.dispatchers:
        raise ValueError(
            f"tf.data service: {config.dispatchers} dispatchers, and none for training rank "
            f"{rank}; there must be one, or one per training rank"
        )
    return rank


def _serving_address(client: ComputeClient, config: TfDataServiceConfig, dispatcher: int) -> str:
    address = client.wait_for_dispatcher(dispatcher, config.timeout)
    client.wait_for_workers(config.workers_of(dispatcher), config.timeout)
    return address


def _others_at(config: TfDataServiceConfig, rank: int) -> list[str]:
    """The other ranks that read from this rank's dispatcher."""
    if config.dispatchers > 1 or not world.is_initialized():
        return []
    return [f"rank {other}" for other in range(world.size()) if other != rank]


def _turns(config: TfDataServiceConfig, rank: int, size: int | None) -> dict[str, int | None]:
    """The arguments for consumers that take turns at the dispatcher of ``rank``."""
    is_shared = config.dispatchers == 1
    return {"consumer_index": rank if is_shared else 0, "num_consumers": size if is_shared else 1}
