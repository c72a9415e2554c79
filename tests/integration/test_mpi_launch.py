"""``horovodrun --mpi`` and ``horovod.run(use_mpi=True)`` with the installed MPIs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from mpi_launchers import LAUNCHERS, MpiLauncher

WORKERS = Path(__file__).with_name("workers")
SCRIPT = (
    "import os, numpy as np, horovod.numpy as hvd; from horovod.core import world; hvd.init();"
    "total = hvd.allreduce(np.ones(1), op=hvd.Sum);"
    "cycle = os.environ['HOROVOD_CYCLE_TIME'];"
    "print(f'told {hvd.rank()} {total} {world.data_plane_name()} {cycle}')"
)
NO_SECRET = "assert '_HOROVOD_SECRET_KEY' not in os.environ"


each_mpi = pytest.mark.parametrize("mpi", LAUNCHERS, ids=lambda mpi: mpi.name)


def run(mpi: MpiLauncher, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    if mpi.lack:
        pytest.skip(f"{mpi.name}: {mpi.lack}")
    path = f"{Path(mpi.prefix[0]).parent}:{os.environ['PATH']}"
    return subprocess.run(
        [mpi.python, *map(str, arguments)],
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )


@each_mpi
def test_horovodrun_becomes_mpirun(mpi: MpiLauncher) -> None:
    launcher = ("-m", "horovod.runner.launch", "-np", 2, "--verbose", "--cycle-time-ms", 3)
    job = run(
        mpi,
        *launcher,
        "--mpi",
        mpi.python,
        "-c",
        f"{SCRIPT};{NO_SECRET}",
        _HOROVOD_SECRET_KEY="c2VjcmV0",
    )
    assert job.returncode == 0, job.stdout + job.stderr
    for rank in (0, 1):
        assert f"told {rank} [2.] mpi 3" in job.stdout
    assert "horovodrun: starting mpirun " in job.stderr
    assert "c2VjcmV0" not in job.stdout + job.stderr


@each_mpi
def test_a_settings_file_may_choose_mpi(mpi: MpiLauncher, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("controller: MPI\nparams: {cycle_time_ms: 3}\n")
    launcher = ("-m", "horovod.runner.launch", "-np", 2, "--config-file", file)
    job = run(mpi, *launcher, mpi.python, "-c", SCRIPT)
    assert job.returncode == 0, job.stdout + job.stderr
    assert "told 1 [2.] mpi 3" in job.stdout
    job = run(mpi, *launcher, "--gloo", mpi.python, "-c", SCRIPT)
    assert "told 1 [2.] native 3" in job.stdout


@each_mpi
def test_the_exit_status_is_that_of_mpirun(mpi: MpiLauncher) -> None:
    launcher = ("-m", "horovod.runner.launch", "-np", 2, "--mpi")
    assert run(mpi, *launcher, mpi.python, "-c", "import sys; sys.exit(7)").returncode == 7


@each_mpi
def test_a_function_on_processes_that_mpirun_starts(mpi: MpiLauncher) -> None:
    job = run(mpi, WORKERS / "mpi_call.py")
    assert job.returncode == 0, job.stdout + job.stderr
    assert "all right" in job.stdout
    assert "ResourceWarning" not in job.stderr
