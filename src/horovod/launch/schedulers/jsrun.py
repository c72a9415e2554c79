"""The command line of ``jsrun``, IBM's job step manager, and its file of ranks. Pure functions."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from horovod.core.base.rank_info import RankInfo
from horovod.launch.model.host_plan import command_argv
from horovod.launch.schedulers.lsf import HostParts
from horovod.launch.schedulers.mpirun import MpiJob

__all__ = ["jsrun_words", "rank_file"]


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


def jsrun_words(job: MpiJob, ranks: Path) -> list[str]:
    """The command line that starts ``job`` with the resource file ``ranks``.

    The job's MPI words, such as ``-gpu``, are for Spectrum MPI, or for jsrun if they begin with two
    dashes.
    """
    words = ["jsrun", "--erf_input", str(ranks)]
    if job.output_directory is not None:
        words += ["--stdio_stdout", str(job.output_directory / "stdout.%t")]
        words += ["--stdio_stderr", str(job.output_directory / "stderr.%t")]
    are_jsruns = bool(job.mpi_words) and job.mpi_words[0].startswith("--")
    smpi = [*(job.binding_words or ()), *(["-tcp"] if job.is_tcp_only else [])]
    smpi += () if are_jsruns else job.mpi_words
    if smpi:
        words += ["--smpiargs", shlex.join(smpi)]
    words += job.mpi_words if are_jsruns else ()
    return words + command_argv(job.command)
