"""What runs in a task of Spark's: it takes in a guest of the job. And what workers can ask for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from horovod.core.base.replaced import names_of
from horovod.launch.embedded.embedded_agent import EmbeddedAgent
from horovod.launch.workers.addresses import resolve, store_addresses
from horovod.launch.workers.search_path import path_ahead
from horovod.rendezvous.identity.host_id import this_host_id
from horovod.rendezvous.store.address_search import find_store
from horovod.spark.task_info import Invitation, TaskInfo

__all__ = ["TASK_FAILED", "get_available_devices", "serve"]

TASK_FAILED = "the Horovod worker of a task has failed"
_DEVICES = "_HOROVOD_SPARK_DEVICES"
_STORE_S = 30.0

__getattr__ = names_of(__name__)


def get_available_devices() -> list[str]:
    """Addresses of the GPUs that Spark gave to the task of this worker, such as ``["0"]``."""
    return [name for name in os.environ.get(_DEVICES, "").split(",") if name]


def serve(index: int, number: int, invitation: Invitation, gpus: Sequence[str]) -> Iterator[int]:
    """Take in a guest until the job is over; ``TaskInfo`` says what the numbers are.

    Raises:
        RuntimeError: the worker of this task has failed, or no launcher has come.
    """
    driver = invitation.stores[0][0]
    host = _own_address(driver, invitation.interfaces)
    with EmbeddedAgent(
        host,
        invitation.secret,
        launcher=driver,
        environment=_environment(invitation, gpus),
        ends_with_failure=invitation.is_elastic,
        patience_s=invitation.patience_s,
    ) as guest:
        hostname = os.uname().nodename
        card = TaskInfo(index, number, this_host_id().host, hostname, guest.address)
        store = find_store(invitation.stores, invitation.secret, _STORE_S)
        store.set(f"card/{number}", card.encoded())
        store.close()
        exit_code = guest.wait()
    if exit_code != 0:
        raise RuntimeError(f"{TASK_FAILED} or was ended; the driver says why")
    yield exit_code


def _own_address(driver: str, interfaces: Sequence[str]) -> str:
    """Where the driver can reach this node."""
    return store_addresses({"driver": resolve(driver)}, {}, interfaces)[0]


def _environment(invitation: Invitation, gpus: Sequence[str]) -> Mapping[str, str]:
    """What the worker has for itself. Modules are found where the task finds them."""
    path = path_ahead()
    return {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys((*path, *invitation.search_path))),
        "HOROVOD_SPARK_PYTHONPATH": os.pathsep.join(path),
        "HOROVOD_SPARK_WORK_DIR": os.getcwd(),
        _DEVICES: ",".join(gpus),
    }
