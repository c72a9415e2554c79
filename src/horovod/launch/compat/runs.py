"""``gloo_run``, ``mpi_run`` and ``js_run``: run one command on all hosts of the settings.

They block until the job has ended, and raise RuntimeError if it failed, as ``run_arguments`` does.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from typing import Any

from horovod.launch.compat.hosts import SlotInfo
from horovod.launch.compat.job import run_arguments
from horovod.launch.compat.settings import BaseSettings, arguments_of
from horovod.launch.schedulers.lsf import is_lsf_job
from horovod.launch.schedulers.mpirun import MpiKind, detect_mpi

Command = str | list[str]
# Taken from this process if an environment lacks them.
_NEEDED = ("PATH", "PYTHONPATH")


def gloo_run(
    settings: BaseSettings,
    nics: Collection[str] | None,
    env: Mapping[str, str] | None,
    server_ip: str | None,
    command: Command,
) -> None:
    """Start the processes without MPI. ``server_ip`` has no effect."""
    args = arguments_of(settings, nics, command)
    args.use_gloo = True
    run_arguments(args, _checked(env))


def mpi_run(
    settings: BaseSettings,
    nics: Collection[str] | None,
    env: Mapping[str, str] | None,
    command: Command,
    stdout: Any = None,
    stderr: Any = None,
) -> None:
    """Start them by ``mpirun``. Also raises ValueError if MPI cannot be used."""
    _run_by_mpi("mpi_run", "use_mpi", settings, nics, env, command, (stdout, stderr))


def js_run(
    settings: BaseSettings,
    nics: Collection[str] | None,
    env: Mapping[str, str] | None,
    command: Command,
    stdout: Any = None,
    stderr: Any = None,
) -> None:
    """Start them by ``jsrun``, in an LSF job. Raises as ``mpi_run``."""
    _run_by_mpi("js_run", "use_jsrun", settings, nics, env, command, (stdout, stderr))


def create_slot_env_vars(slot_info: SlotInfo) -> dict[str, str]:
    """The variables of a worker's ranks and sizes."""
    return {f"HOROVOD_{name.upper()}": str(value) for name, value in vars(slot_info).items()}


def create_run_env_vars(
    server_ip: str, nics: Collection[str] | None, port: int, elastic: bool = False
) -> dict[str, str]:
    """The variables that are the same for all workers, without the secret.

    The secret is in the environment of the process with the ``RendezvousServer``. Some launchers
    put these variables into a command line, where a secret must not be.

    Raises:
        ValueError: ``elastic``.
    """
    if elastic:
        raise ValueError("elastic: see docs/migrating.md; these variables are for fixed sizes")
    variables = {
        "PYTHONUNBUFFERED": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": server_ip,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    if nics:
        variables["HOROVOD_GLOO_IFACE"] = variables["NCCL_SOCKET_IFNAME"] = ",".join(sorted(nics))
    return variables


def mpi_available(env: Mapping[str, str] | None = None) -> bool:
    """Whether there is an ``mpirun`` of a known MPI."""
    return _mpi_kind(env) is not None


def is_open_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Whether ``mpirun`` is Open MPI's."""
    return _mpi_kind(env) is MpiKind.OPEN_MPI


def is_spectrum_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Whether ``mpirun`` is IBM Spectrum MPI's."""
    return _mpi_kind(env) is MpiKind.SPECTRUM


def is_mpich(env: Mapping[str, str] | None = None) -> bool:
    """Whether ``mpirun`` is MPICH's."""
    return _mpi_kind(env) is MpiKind.MPICH


def is_intel_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Whether ``mpirun`` is Intel MPI's."""
    return _mpi_kind(env) is MpiKind.INTEL


def is_jsrun_installed() -> bool:
    """Whether this is an LSF job with a ``jsrun`` in the PATH."""
    return is_lsf_job(os.environ) and shutil.which("jsrun") is not None


def _run_by_mpi(
    name: str,
    controller: str,
    settings: BaseSettings,
    nics: Collection[str] | None,
    env: Mapping[str, str] | None,
    command: Command,
    streams: tuple[Any, Any],
) -> None:
    if streams != (None, None):
        raise ValueError(
            f"{name}: stdout and stderr cannot be redirected; use settings.output_filename"
        )
    args = arguments_of(settings, nics, command)
    setattr(args, controller, True)
    args.mpi_args, args.tcp_flag = settings.extra_mpi_args, settings.tcp_flag
    args.binding_args = settings.binding_args
    run_arguments(args, _checked(env))


def _checked(env: Mapping[str, str] | None) -> Mapping[str, str]:
    if env is None:
        return os.environ
    if not isinstance(env, dict):
        raise TypeError(f"env argument must be a dict, not {type(env).__name__}")
    return {**{name: os.environ[name] for name in _NEEDED if name in os.environ}, **env}


def _mpi_kind(env: Mapping[str, str] | None) -> MpiKind | None:
    try:
        return detect_mpi(os.environ if env is None else env)
    except RuntimeError:
        return None
