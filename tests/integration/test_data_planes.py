"""All collectives over Gloo and MPI, and jobs started by mpirun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from launching import LAUNCHER
from mpi_launchers import LAUNCHERS, MpiLauncher

PARALLEL = Path(__file__).parents[1] / "parallel"
WORKERS = Path(__file__).with_name("workers")
CONFORMANCE = ("-m", "horovod.backends.conformance")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no")
FEW_WORLDS = ("-k", "not hundred")


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
each_mpi = pytest.mark.parametrize("mpi", LAUNCHERS, ids=lambda mpi: mpi.name)


def run_over(
    plane: str, ranks: int, *arguments: object, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [*LAUNCHER, "-np", str(ranks), sys.executable, *map(str, arguments)]
    return subprocess.run(
        command,
        env={**os.environ, "HOROVOD_CPU_OPERATIONS": plane, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )


def check_conformance(job: subprocess.CompletedProcess[str], plane: str, ranks: int) -> None:
    assert job.returncode == 0, job.stdout + job.stderr
    told = re.findall(rf"rank (\d) of {ranks}: data plane {plane}: (\d+) of \2 cases", job.stdout)
    assert sorted(rank for rank, _ in told) == [str(rank) for rank in range(ranks)]


def check_tests(job: subprocess.CompletedProcess[str], ranks: int) -> None:
    assert job.returncode == 0, job.stdout[-10000:] + job.stderr[-3000:]
    assert len(re.findall(r"\d+ passed", job.stdout)) == ranks


@needs_torch
def test_gloo_conforms() -> None:
    check_conformance(run_over("gloo", 3, *CONFORMANCE), "gloo", 3)


@needs_torch
def test_gloo_says_once_that_it_is_not_protected() -> None:
    program = "import horovod.numpy as hvd\nfor _ in range(2): hvd.init(); hvd.shutdown()"
    job = run_over("gloo", 2, "-c", program, HOROVOD_LINK_PROTECTION="encrypted")
    assert job.returncode == 0, job.stderr
    assert job.stderr.count("HOROVOD_LINK_PROTECTION=encrypted: tensors travel over gloo") == 1


@needs_torch
def test_the_numpy_tests_over_gloo() -> None:
    check_tests(run_over("gloo", 2, *PYTEST, PARALLEL / "numpy", *FEW_WORLDS), 2)


@each_mpi
def test_mpi_conforms(mpi: MpiLauncher) -> None:
    check_conformance(mpi.run(3, *CONFORMANCE), "mpi", 3)


@each_mpi
def test_the_numpy_tests_over_mpi(mpi: MpiLauncher) -> None:
    check_tests(mpi.run(2, *PYTEST, PARALLEL / "numpy", *FEW_WORLDS), 2)


@each_mpi
def test_worlds_and_process_sets_of_communicators(mpi: MpiLauncher) -> None:
    job = mpi.run(4, WORKERS / "communicators.py")
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.count("all right") == 4


@each_mpi
def test_mpirun_starts_jobs_of_the_native_data_plane(mpi: MpiLauncher) -> None:
    check_conformance(mpi.run(2, *CONFORMANCE, "native"), "native", 2)


@needs_torch
@each_mpi
def test_mpirun_starts_jobs_over_gloo(mpi: MpiLauncher) -> None:
    script = (
        "import numpy as np, horovod.numpy as hvd; from horovod.core import world; hvd.init();"
        "print(f'{world.data_plane_name()} {hvd.allreduce(np.ones(1), op=hvd.Sum)}')"
    )
    job = mpi.run(2, "-c", script, HOROVOD_CPU_OPERATIONS="gloo")
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("gloo [2.]") == 2


@each_mpi
def test_mpi_with_one_thread_at_a_time(mpi: MpiLauncher) -> None:
    script = (
        "import numpy as np, horovod.numpy as hvd; hvd.init(); from horovod.core import world;"
        "from mpi4py import MPI; assert MPI.Query_thread() == MPI.THREAD_SERIALIZED;"
        "assert not world.mpi_threads_supported(); print(hvd.allreduce(np.ones(1), op=hvd.Sum))"
    )
    job = mpi.run(2, "-c", script, HOROVOD_MPI_THREADS_DISABLE="1")
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("[2.]") == 2


@each_mpi
def test_a_missing_process_ends_the_wait_of_the_others(mpi: MpiLauncher) -> None:
    script = (
        "import numpy as np, horovod.numpy as hvd; from mpi4py import MPI\n"
        "if MPI.COMM_WORLD.rank == 0:\n"
        "    try: hvd.init()\n"
        "    except ValueError as error: print(error, flush=True)\n"
        "    MPI.COMM_WORLD.send(None, 1)\n"
        "else:\n"
        "    MPI.COMM_WORLD.recv(source=0)\n"
        "hvd.init()\n"
        "print(hvd.allreduce(np.ones(1), op=hvd.Sum))\n"
    )
    job = mpi.run(2, "-c", script, HOROVOD_START_TIMEOUT="0.3")
    assert "not all of the 2 processes came within 0.3 s (HOROVOD_START_TIMEOUT)" in job.stdout
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("[2.]") == 2


WRONG = """
from horovod.backends.gloo import GlooBackend

class Wrong(GlooBackend):
    def allreduce(self, array, reduction):
        return super().allreduce(array, "sum" if reduction == "max" else reduction)
"""


@needs_torch
def test_a_wrong_data_plane_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "wrong_plane.py").write_text(WRONG)
    information = tmp_path / "wrong_plane-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong-plane\nVersion: 1\n")
    entry_points = "[horovod.backends]\nwrong = wrong_plane:Wrong\n"
    (information / "entry_points.txt").write_text(entry_points)
    job = run_over("wrong", 2, *CONFORMANCE, PYTHONPATH=str(tmp_path))
    assert job.returncode == 1
    assert (
        "allreduce float32: max, count 1: element 0 is 2.0, expected 1.0" in job.stdout + job.stderr
    )


def test_mpi_needs_processes_that_mpi_started() -> None:
    if find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    job = run_over("mpi", 2, "-c", "import horovod.numpy as hvd; hvd.init()")
    assert job.returncode == 1
    assert "MPI knows 1 processes, this world has 2; start them with mpirun" in job.stderr
