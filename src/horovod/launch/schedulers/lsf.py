"""The hosts of an LSF job with their CPUs and GPUs, and ``jsrun``, IBM's job step manager."""

from __future__ import annotations

import shlex
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from horovod.core.base.rank_info import RankInfo
from horovod.launch.model.host_plan import command_argv
from horovod.launch.model.hosts import HostSlots
from horovod.launch.model.ssh import SshOptions, remote_words
from horovod.launch.schedulers.mpirun import MpiJob
from horovod.launch.workers.machine import is_this_machine

# Prints the number of logical CPUs and of NVIDIA GPUs.
_QUESTION = "getconf _NPROCESSORS_ONLN; nvidia-smi -L 2>/dev/null | grep -c ^GPU; true"
_TIMEOUT_S = 30


class HostParts(NamedTuple):
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
        counted: dict[str, int] = Counter(Path(path).read_text(encoding="utf-8").split())
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


def rank_file(slots: Sequence[RankInfo], parts: HostParts) -> str:
    """The explicit resource file: each rank's host, an equal part of its CPUs, all GPUs and memory.

    Raises:
        ValueError: a host has fewer CPUs than ranks.
    """
    lines = ["overlapping_rs: allow", "cpu_index_using: logical", ""]
    for slot in slots:
        share = parts.cpus // slot.local_size
        if share == 0:
            raise ValueError(
                f"{slot.hostname} has {parts.cpus} CPUs for {slot.local_size} processes"
            )
        first = slot.local_rank * share
        resources = f"cpu: {{{first}-{first + share - 1}}} ; gpu: * ; mem: *"
        lines.append(f"rank: {slot.rank}: {{ hostname: {slot.hostname}; {resources} }}")
    return "\n".join(lines) + "\n"


def jsrun_argv(job: MpiJob, ranks: Path) -> list[str]:
    """The command line that starts ``job`` with the resource file ``ranks``.

    The job's MPI argv, such as ``-gpu``, are for Spectrum MPI, or for jsrun if they begin with two
    dashes.
    """
    argv = ["jsrun", "--erf_input", str(ranks)]
    if job.output_directory is not None:
        argv += ["--stdio_stdout", str(job.output_directory / "stdout.%t")]
        argv += ["--stdio_stderr", str(job.output_directory / "stderr.%t")]
    are_jsruns = bool(job.mpi_options) and job.mpi_options[0].startswith("--")
    smpi = [*(job.binding_options or ()), *(["-tcp"] if job.is_tcp_only else [])]
    smpi += () if are_jsruns else job.mpi_options
    if smpi:
        argv += ["--smpiargs", shlex.join(smpi)]
    argv += job.mpi_options if are_jsruns else ()
    return argv + command_argv(job.command)
