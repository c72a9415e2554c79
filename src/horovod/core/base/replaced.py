"""Names of the original that have no counterpart here: importing one says what takes its place.

A module of the table that is imported, or a name that is looked up in a module which ``names_of``
serves, is an ImportError with the sentence of the table. Every other name is missing as usual.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_START = (
    "start processes with horovodrun, horovod.run or horovod.runner.launch._run, or start them "
    "yourself beside a horovod.runner.http.http_server.RendezvousServer"
)
_SERVICES = f"workers and launcher talk through the job's store alone; {_START}"
_ELASTIC = (
    "the elastic driver is a part of horovodrun; use horovodrun --host-discovery-script, "
    "horovod.run(host_discovery_script=...) or the elastic executor of horovod.ray"
)
_PROCESSES = "use Python's subprocess; horovodrun ends its workers and all their children itself"
_RAY = (
    "horovod.ray.RayExecutor is one class: num_workers= packs workers, num_hosts= with "
    "num_workers_per_host= spreads them, min_workers= makes the job elastic"
)
_SPARK = "horovod.spark.run and run_elastic start and end the processes"
_SAVED = "estimators and models have write().save(path), read().load(path), save and load"
_MAPPED = "train_data of a DataModule may return any iterable of {column: array}"
_NVTABULAR = (
    "NVTabular reads with GPUs; use PetastormDataModule, which reads Parquet with pyarrow, or a "
    "subclass of horovod.spark.common.datamodule.DataModule that reads with NVTabular"
)
_DATA = {"MapIterable": _MAPPED, "NVTabularDataModule": _NVTABULAR}
_BASE64 = "use base64.b64encode(key).decode(), or pickle with a code of yours for objects"

_MODULES = {
    "horovod.run": "the launcher's modules are in horovod.runner",
    "horovod.runner.common.service": _SERVICES,
    "horovod.runner.common.util.codec": _BASE64,
    "horovod.runner.common.util.host_hash": "use HOROVOD_HOSTNAME or hvd.local_rank()",
    "horovod.runner.common.util.network": _SERVICES,
    "horovod.runner.common.util.safe_shell_exec": _PROCESSES,
    "horovod.runner.common.util.tiny_shell_exec": _PROCESSES,
    "horovod.runner.driver": _SERVICES,
    "horovod.runner.elastic.driver": _ELASTIC,
    "horovod.runner.elastic.registration": _ELASTIC,
    "horovod.runner.elastic.rendezvous": _ELASTIC,
    "horovod.runner.elastic.worker": "horovod.elastic.run is told of new hosts by itself",
    "horovod.runner.run_task": "horovod.run starts and ends what calls the function",
    "horovod.runner.task": _SERVICES,
    "horovod.runner.task_fn": _SERVICES,
    "horovod.runner.util.cache": "nothing is remembered between jobs",
    "horovod.runner.util.remote": _START,
    "horovod.runner.util.streams": "use Python's subprocess and threads",
    "horovod.ray.adapter": _RAY,
    "horovod.ray.driver_service": _RAY,
    "horovod.ray.strategy": _RAY,
    "horovod.spark.common.cache": "prepare_data itself remembers what it has prepared",
    "horovod.spark.common.constants": "horovod.spark.common.params has what estimators take",
    "horovod.spark.common.serialization": _SAVED,
    "horovod.spark.driver": _SPARK,
    "horovod.spark.gloo_run": _SPARK,
    "horovod.spark.mpi_run": _SPARK,
}

_NAMES = {
    "horovod.ray.elastic_v2": {"ElasticAdapter": _RAY, "ElasticParams": _RAY},
    "horovod.ray.runner": {"StaticAdapter": _RAY, "StaticParams": _RAY},
    "horovod.ray.utils": {"detect_nics": "ranks find the interfaces themselves; nics= names some"},
    "horovod.spark.common.datamodule": _DATA,
    "horovod.spark.keras.datamodule": _DATA,
    "horovod.spark.lightning.datamodule": _DATA,
    "horovod.spark.task": {"task_exec": _SPARK},
    "horovod.spark.torch.datamodule": _DATA,
    "horovod.runner.gloo_run": {
        "gloo_run_elastic": _ELASTIC,
        "launch_gloo": _START,
        "launch_gloo_elastic": _ELASTIC,
    },
    "horovod.runner.launch": {
        "gloo_run_elastic": _ELASTIC,
        "launch_gloo_elastic": _ELASTIC,
        "safe_shell_exec": _PROCESSES,
    },
}


def replaced(name: str, instead: str) -> ImportError:
    """The error for a name of the original, with what to use in its place."""
    return ImportError(
        f"{name} of the original Horovod is not in this version: {instead} (docs/migrating.md)",
        name=name,
    )


def names_of(module: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module of which the table has names."""
    names = _NAMES[module]

    def look_up(name: str) -> Any:
        if name in names:
            raise replaced(f"{module}.{name}", names[name])
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return look_up


def explain_modules() -> None:
    """From now on importing a module of the table says what takes its place; may be repeated."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


class _Finder(MetaPathFinder):
    """Comes last, so it is asked only for what is not there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in _MODULES:
            raise replaced(fullname, _MODULES[fullname])
        return None
