"""The hosts of an LSF job with their CPUs and GPUs, for horovodrun in such a job."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from horovod.launch.model.hosts import HostSlots
from horovod.launch.model.ssh import SshOptions, remote_words
from horovod.launch.workers.machine import is_this_machine

# Prints the number of logical CPUs and of NVIDIA GPUs.
_QUESTION = "getconf _NPROCESSORS_ONLN; nvidia-smi -L 2>/dev/null | grep -c ^GPU; true"
_TIMEOUT_S = 30


@dataclass(frozen=True)
class HostParts:
    """The CPUs and GPUs of a host."""

    cpus: int
    gpus: int


def is_lsf_job(environ: Mapping[str, str]) -> bool:
    """Whether this process is part of an LSF job."""
    return "LSB_JOBID" in environ


def job_hosts(environ: Mapping[str, str]) -> tuple[HostSlots, ...]:
    """The job's hosts with their slots, without a launch node.

    Raises:
        ValueError: the job names no hosts.
        OSError: its list of hosts cannot be read.
    """
    path, pairs = environ.get("LSB_DJOB_HOSTFILE"), environ.get("LSB_MCPU_HOSTS", "").split()
    if path:
        counted: dict[str, int] = {}
        for name in Path(path).read_text(encoding="utf-8").split():
            counted[name] = counted.get(name, 0) + 1
    else:
        counted = {name: int(slots) for name, slots in zip(pairs[::2], pairs[1::2], strict=True)}
    hosts = tuple(HostSlots(name, slots) for name, slots in counted.items())
    if not hosts:
        raise ValueError("this LSF job names no hosts (LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS)")
    # A launch node comes first with one slot; compute nodes have a slot for each core.
    is_launch_node = len(hosts) > 1 and hosts[0].slots == 1 < hosts[1].slots
    return hosts[1:] if is_launch_node else hosts


def ask_host(hostname: str, ssh: SshOptions, environ: Mapping[str, str]) -> HostParts:
    """The CPUs and GPUs of ``hostname``, by ssh unless it is this machine; all hosts are alike.

    Raises:
        RuntimeError: it does not answer.
    """
    here = is_this_machine(hostname)
    try:
        answer = subprocess.run(
            ["sh", "-c", _QUESTION] if here else remote_words(hostname, _QUESTION, ssh, environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        cpus, gpus = map(int, answer.stdout.split()[:2])
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"cannot ask {hostname} for its CPUs and GPUs: {error}") from None
    return HostParts(cpus, gpus)


def with_a_process_per_gpu(hosts: tuple[HostSlots, ...], parts: HostParts) -> tuple[HostSlots, ...]:
    """The same hosts with a slot for each GPU, if they have any."""
    return tuple(HostSlots(host.hostname, parts.gpus or host.slots) for host in hosts)
