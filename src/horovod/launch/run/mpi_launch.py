"""Starts a job by ``mpirun`` or ``jsrun``."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from horovod.core.base import mpi_library
from horovod.launch.model.hosts import HostSlots, assign_ranks
from horovod.launch.model.ssh import SshOptions
from horovod.launch.run.supervision import end
from horovod.launch.schedulers.lsf import (
    ask_host,
    is_lsf_job,
    job_hosts,
    jsrun_argv,
    rank_file,
    with_a_process_per_gpu,
)
from horovod.launch.schedulers.mpirun import MpiJob, detect_mpi, mpirun_argv, mpirun_environment


def check_mpi(option: str) -> None:
    """Check that MPI can be used.

    ``option``: what asks for it, as the user knows it.

    Raises:
        ValueError: mpi4py or an MPI library is missing; the text says what to install.
    """
    if (missing := mpi_library.why_not_built()) is not None:
        raise ValueError(f"{option}: {missing}")


def lsf_hosts(environ: Mapping[str, str], ssh: SshOptions) -> tuple[HostSlots, ...]:
    """The hosts of this process' LSF job, with a slot for each GPU or core.

    Raises:
        ValueError: there is no such job, or it names no hosts.
        RuntimeError: they cannot be asked.
    """
    if not is_lsf_job(environ):
        raise ValueError("there is no LSF job here (LSB_JOBID is not set)")
    hosts = job_hosts(environ)
    return with_a_process_per_gpu(hosts, ask_host(hosts[0].hostname, ssh, environ))


def why_no_jsrun(environ: Mapping[str, str]) -> str:
    """Why ``jsrun`` cannot start processes that use MPI; empty if it can."""
    if shutil.which("jsrun", path=environ.get("PATH")) is None:
        return "there is no jsrun in the PATH"
    return mpi_library.why_not_built() or ""


def become_mpirun(
    job: MpiJob, environ: Mapping[str, str], variables: Mapping[str, str], *, is_verbose: bool
) -> NoReturn:
    """Replace this process by the ``mpirun`` of ``job``.

    Raises:
        RuntimeError: there is no known mpirun.
        ValueError: it cannot do what is asked for.
    """
    argv, environment = _mpirun(job, environ, variables, is_verbose)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(argv[0], argv, environment)


def run_mpirun(
    job: MpiJob, environ: Mapping[str, str], variables: Mapping[str, str], *, is_verbose: bool
) -> int:
    """Run ``job`` by ``mpirun``, in a child of this process; returns its exit status.

    Raises:
        RuntimeError, ValueError: as ``become_mpirun``.
    """
    argv, environment = _mpirun(job, environ, variables, is_verbose)
    with subprocess.Popen(argv, env=environment) as process:
        try:
            return process.wait()
        except BaseException:
            end(process)
            raise


def run_jsrun(
    job: MpiJob, environ: Mapping[str, str], variables: Mapping[str, str], *, is_verbose: bool
) -> int:
    """Run ``job`` by ``jsrun`` on the hosts of the LSF job; returns its exit status.

    Raises:
        ValueError: this is no LSF job, or has no jsrun; or it cannot do what is asked for.
        RuntimeError: the hosts cannot be asked what they have.
    """
    if not is_lsf_job(environ):
        raise ValueError("--jsrun: there is no LSF job here (LSB_JOBID is not set)")
    if shutil.which("jsrun", path=environ.get("PATH")) is None:
        raise ValueError("--jsrun: there is no jsrun in the PATH")
    slots = assign_ranks(job.hosts, job.process_count)
    parts = ask_host(slots[0].hostname, job.ssh, environ)
    with tempfile.TemporaryDirectory(prefix="horovod-") as folder:
        ranks = Path(folder) / "ranks"
        ranks.write_text(rank_file(slots, parts), encoding="utf-8")
        argv = jsrun_argv(job, ranks)
        _print_command(argv, is_verbose)
        return subprocess.call(argv, env=mpirun_environment(environ, variables, job))


def _mpirun(
    job: MpiJob, environ: Mapping[str, str], variables: Mapping[str, str], is_verbose: bool
) -> tuple[list[str], dict[str, str]]:
    """The command line of ``mpirun``, and its environment."""
    environment = mpirun_environment(environ, variables, job)
    argv = mpirun_argv(job, detect_mpi(environment), environment)
    _print_command(argv, is_verbose)
    return argv, environment


def _print_command(argv: list[str], is_verbose: bool) -> None:
    if is_verbose:
        print(f"horovodrun: starting {shlex.join(argv)}", file=sys.stderr)
