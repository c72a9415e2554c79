"""Jobs started by srun, on a Slurm cluster of one node."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import slurm_cluster
from ports import free_port
from slurm_cluster import SlurmCluster
from tutorials import DOCS, write_files

pytestmark = [
    pytest.mark.skipif(bool(slurm_cluster.lack()), reason=slurm_cluster.lack() or "-"),
]

NUMBERS = """
import sys
import horovod.numpy as hvd
from horovod.core import world
hvd.init()
places = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_size()
# At once: ranks share the file.
sys.stdout.write(f"numbers {' '.join(map(str, places))} {world.data_plane_name()}\\n")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def test_srun_starts_a_world(cluster: SlurmCluster, tmp_path: Path) -> None:
    folder = tmp_path / "rendezvous"
    job = cluster.run(
        *("srun", "-n3", "--overcommit", sys.executable, "-m", "horovod.backends.conformance"),
        HOROVOD_RENDEZVOUS_DIR=str(folder),
    )
    assert job.returncode == 0, job.stdout + job.stderr
    told = re.findall(r"rank (\d) of 3: data plane native: (\d+) of \1?\d+ cases", job.stdout)
    assert sorted(rank for rank, _ in told) == ["0", "1", "2"]
    # The file with the secret is gone, and other users cannot read its folder.
    assert list(folder.iterdir()) == []
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_steps_of_one_job_do_not_meet(cluster: SlurmCluster, tmp_path: Path) -> None:
    program, script = tmp_path / "places.py", tmp_path / "job.sh"
    program.write_text(NUMBERS)
    step = f"srun -n2 --exact {sys.executable} {program}"
    script.write_text(f"#!/bin/sh\n{step} &\n{step} &\nwait\n{sys.executable} {program}\n")
    output = tmp_path / "output"
    job = cluster.run(
        *("sbatch", "--wait", "-n4", "-o", output, script), HOROVOD_RENDEZVOUS_DIR=str(tmp_path)
    )
    text = output.read_text()
    assert job.returncode == 0, text + job.stderr
    numbers = sorted(re.findall(r"numbers (.*)", text))
    # A program started by the batch script itself has one rank, in spite of Slurm's variables.
    first, second = "0 2 0 2 1 native", "1 2 1 2 1 native"
    assert numbers == ["0 1 0 1 1 native", first, first, second, second]


def test_the_tutorial(cluster: SlurmCluster, tmp_path: Path) -> None:
    write_files(DOCS / "tutorials" / "slurm.md", tmp_path)
    output = tmp_path / "output"
    job = cluster.run(
        *("sbatch", "--wait", "-o", output, "-D", tmp_path, tmp_path / "job.sh"),
        HOROVOD_RENDEZVOUS_DIR=str(tmp_path),
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    )
    assert job.returncode == 0, output.read_text() + job.stderr
    assert "2 ranks, sum 2.0\n" in output.read_text()


@pytest.mark.parametrize("names", [("SLURM_PROCID", "SLURM_NTASKS"), ()], ids=["env", "hvd"])
def test_torch_distributed(cluster: SlurmCluster, tmp_path: Path, names: tuple[str, ...]) -> None:
    script = Path(__file__).with_name("workers") / "process_group.py"
    arguments = names or (f"file://{tmp_path}/store",)
    job = cluster.run(
        *("srun", "-n2", "--overcommit", sys.executable, script, *arguments),
        HOROVOD_RENDEZVOUS_DIR=str(tmp_path),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert sorted(job.stdout.splitlines()) == ["rank 0 of 2: 4", "rank 1 of 2: 4"]
