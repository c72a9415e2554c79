"""A Spark task that runs an embedded agent of a job, and the GPUs of its worker."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from horovod.core.base.replaced import names_of
from horovod.launch.embedded.embedded_agent import EmbeddedAgent
from horovod.launch.workers.addresses import resolve, store_addresses
from horovod.launch.workers.python_command import path_ahead
from horovod.rendezvous.identity.host_id import this_host_id
from horovod.rendezvous.store.address_search import find_store
from horovod.spark.task_info import AgentOptions, TaskInfo

__all__ = ["TASK_FAILED", "get_available_devices", "serve"]

TASK_FAILED = "the Horovod worker of a task has failed"
_DEVICES = "_HOROVOD_SPARK_DEVICES"
_STORE_S = 30.0

__getattr__ = names_of(__name__)


def get_available_devices() -> list[str]:
    """Addresses of the GPUs that Spark gave to the task of this worker, such as ``["0"]``."""
    return [name for name in os.environ.get(_DEVICES, "").split(",") if name]


def serve(index: int, number: int, options: AgentOptions, gpus: Sequence[str]) -> Iterator[int]:
    """Run an agent until the job is over; ``TaskInfo`` explains ``index`` and ``number``.

    Raises:
        RuntimeError: the worker of this task has failed, or no launcher has connected.
    """
    driver = options.stores[0][0]
    host = _own_address(driver, options.interfaces)
    with EmbeddedAgent(
        host,
        options.secret,
        launcher=driver,
        environment=_environment(options, gpus),
        ends_with_failure=options.is_elastic,
        patience_s=options.patience_s,
    ) as agent:
        hostname = os.uname().nodename
        info = TaskInfo(index, number, this_host_id().host, hostname, agent.address)
        store = find_store(options.stores, options.secret, _STORE_S)
        store.set(f"task/{number}", info.to_bytes())
        store.close()
        exit_code = agent.wait()
    if exit_code != 0:
        raise RuntimeError(f"{TASK_FAILED} or was ended; the driver says why")
    yield exit_code


def _own_address(driver: str, interfaces: Sequence[str]) -> str:
    """This node's address, as the driver can reach it."""
    return store_addresses({"driver": resolve(driver)}, {}, interfaces)[0]


def _environment(options: AgentOptions, gpus: Sequence[str]) -> Mapping[str, str]:
    """The worker's own variables. It finds modules where the task finds them."""
    path = path_ahead()
    return {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys((*path, *options.search_path))),
        "HOROVOD_SPARK_PYTHONPATH": os.pathsep.join(path),
        "HOROVOD_SPARK_WORK_DIR": os.getcwd(),
        _DEVICES: ",".join(gpus),
    }
