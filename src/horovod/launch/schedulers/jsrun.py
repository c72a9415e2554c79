"""The command line of ``jsrun``, IBM's job step manager, and its file of ranks. Pure functions."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from horovod.core.base.rank_info import RankInfo
from horovod.launch.model.host_plan import command_argv
from horovod.launch.schedulers.lsf import HostParts
from horovod.launch.schedulers.mpirun import MpiJob


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
        cpus = f"{{{first}-{first + share - 1}}}"
        lines.append(
            f"rank: {slot.rank}: {{ hostname: {slot.hostname}; cpu: {cpus} ; gpu: * ; mem: * }}"
        )
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
