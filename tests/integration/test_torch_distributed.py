"""Programs of ``torch.distributed`` on the backend ``horovod``, started by torchrun and by us."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launching import noted_environment, run, start
from mpi_launchers import LAUNCHERS as LAUNCHERS_OF_MPI
from mpi_launchers import MpiLauncher
from ports import free_port
from waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples" / "torch_distributed"
LAUNCHERS = {
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "horovodrun": ["-m", "horovod.runner.launch", "-np", "2", sys.executable],
}


@pytest.mark.parametrize(
    ("launcher", "script"), [("torchrun", "ddp.py"), ("horovodrun", "fsdp2.py")]
)
def test_an_example_learns(launcher: str, script: str) -> None:
    job = subprocess.run(
        [sys.executable, *LAUNCHERS[launcher], str(EXAMPLES / script)],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert job.returncode == 0, job.stdout + job.stderr[-5000:]
    accuracies = re.findall(r"accuracy (\d\.\d+)", job.stdout)
    assert len(accuracies) == 3
    assert float(accuracies[-1]) > 0.85


RESTARTED = """
import os
import torch
import torch.distributed as dist

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("horovod")
dist.all_reduce(total := torch.ones(1))
group = dist.new_group([0, 1])
dist.all_reduce(total, group=group)
if dist.get_rank() == 0:
    dist.send(total, 1)
else:
    dist.recv(total, 0)
if attempt == 0 and dist.get_rank() == 1:
    os._exit(3)
dist.all_reduce(total)
print(f"attempt {attempt}: {total.item():.0f}", flush=True)
dist.destroy_process_group()
"""


def test_torchrun_starts_all_ranks_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RESTARTED)
    job = subprocess.run(
        [sys.executable, *LAUNCHERS["torchrun"], "--max-restarts", "1", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert job.returncode == 0, job.stdout + job.stderr[-5000:]
    assert job.stdout.count("attempt 1: 8") == 2
    assert "attempt 0" not in job.stdout


KILLED = """
import os
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(sys.argv[1])
store = f"file://{os.getcwd()}/store"
dist.init_process_group("horovod", init_method=store, rank=rank, world_size=2)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
for step in range(5):
    loss = model(torch.ones(1, 2)).sum()
    if step == 3 and rank == 1:
        os._exit(3)
    loss.backward()
"""


def test_ddp_names_a_rank_that_has_died(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(KILLED)
    ranks = [
        subprocess.Popen(
            [sys.executable, "train.py", rank],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in "01"
    ]
    errors = [rank.communicate(timeout=500)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 3], errors
    assert re.search(r"RuntimeError: .*rank 1 \(pid \d+ on \S+\) died", errors[0]), errors[0]


DIVERGED = """
import torch
import torch.distributed as dist

dist.init_process_group("horovod")
dist.all_reduce(total := torch.ones(1))
if dist.get_rank() == 0:
    dist.all_reduce(total)
else:
    dist.recv(total, 0)
"""


def test_the_doctor_calls_operations_as_torch_does(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DIVERGED)
    environment = noted_environment(tmp_path)

    def divergence() -> dict[str, Any] | None:
        found = json.loads(run("--doctor", "--json", env=environment)[1])["findings"]
        return next((entry for entry in found if entry["code"] == "divergence"), None)

    command = ("-np", "2", sys.executable, str(tmp_path / "train.py"))
    with start(*command, env=environment) as process:
        try:
            until(lambda: len(list(tmp_path.glob("recordings/*/*.running"))) == 2)
            finding = until(divergence)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=500)
    assert " in all_reduce number 2 of group default, for " in finding["text"]
    assert " in broadcast 'send.default.0-1.tag0.0' of process set " in finding["text"]


@pytest.mark.parametrize("is_of_hvd", [False, True], ids=["env", "hvd"])
@pytest.mark.parametrize("mpi", LAUNCHERS_OF_MPI, ids=lambda mpi: mpi.name)
def test_mpirun(mpi: MpiLauncher, tmp_path: Path, is_of_hvd: bool) -> None:
    script = Path(__file__).with_name("workers") / "process_group.py"
    names = {"Open MPI": "OMPI_COMM_WORLD", "MPICH": "PMI"}[mpi.name]
    arguments = [f"{names}_RANK", f"{names}_SIZE"]
    if is_of_hvd:
        arguments = [f"file://{tmp_path}/store"]
    job = mpi.run(
        2,
        *(script, *arguments),
        HOROVOD_CPU_OPERATIONS="native",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert sorted(job.stdout.splitlines()) == ["rank 0 of 2: 4", "rank 1 of 2: 4"]
