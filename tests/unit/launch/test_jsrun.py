"""Jobs of LSF's: their hosts, and the words and the file of ranks for jsrun."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from horovod.core.base import mpi_library
from horovod.launch.cli import main as cli
from horovod.launch.model.hosts import HostSlots, assign_ranks, parse_hosts
from horovod.launch.model.job_plan import JobOutcome, JobPlan
from horovod.launch.model.ssh import SshOptions
from horovod.launch.run import mpi_launch
from horovod.launch.schedulers.lsf import (
    HostParts,
    ask_host,
    job_hosts,
    jsrun_argv,
    rank_file,
    with_a_process_per_gpu,
)
from horovod.launch.schedulers.mpirun import MpiJob


def test_hosts_of_a_job(tmp_path: Path) -> None:
    found = job_hosts({"LSB_MCPU_HOSTS": "batch 1 node-1 42 node-2 42"})
    assert found == parse_hosts("node-1:42,node-2:42")
    assert job_hosts({"LSB_MCPU_HOSTS": "node-1 1 node-2 1"}) == parse_hosts("node-1:1,node-2:1")
    assert job_hosts({"LSB_MCPU_HOSTS": "node-1 1"}) == parse_hosts("node-1:1")
    file = tmp_path / "hosts"
    file.write_text("batch\nnode-1\nnode-1\nnode-2\nnode-2\n")
    assert job_hosts({"LSB_DJOB_HOSTFILE": str(file)}) == parse_hosts("node-1:2,node-2:2")
    with pytest.raises(ValueError, match=r"names no hosts \(LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS\)"):
        job_hosts({})


def test_a_process_for_each_gpu_or_core() -> None:
    hosts = parse_hosts("a:42,b:42")
    assert with_a_process_per_gpu(hosts, HostParts(168, 6)) == parse_hosts("a:6,b:6")
    assert with_a_process_per_gpu(hosts, HostParts(168, 0)) == hosts


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``ssh`` that runs the command here, where ``nvidia-smi`` finds two GPUs."""
    for name, script in {
        "ssh": 'for last do :; done; eval "$last"',
        "nvidia-smi": "echo 'GPU 0: A'; echo 'GPU 1: B'",
        "getconf": "echo 8",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_a_host_is_asked_what_it_has(ssh: Path) -> None:
    assert ask_host("node-1", SshOptions(), {}) == HostParts(8, 2)
    (ssh / "ssh").write_text("#!/bin/sh\nexit 255\n")
    with pytest.raises(RuntimeError, match="cannot ask node-1 for its CPUs and GPUs"):
        ask_host("node-1", SshOptions(), {})


def test_hosts_of_the_job_around_this_process(ssh: Path) -> None:
    environ = {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "batch 1 node-1 8 node-2 8"}
    assert mpi_launch.lsf_hosts(environ, SshOptions()) == (
        HostSlots("node-1", 2),
        HostSlots("node-2", 2),
    )
    with pytest.raises(ValueError, match="no LSF job here"):
        mpi_launch.lsf_hosts({}, SshOptions())


def test_the_file_of_ranks() -> None:
    slots = assign_ranks(parse_hosts("a:2,b:2"), 3)
    assert rank_file(slots, HostParts(8, 2)) == (
        "overlapping_rs: allow\n"
        "cpu_index_using: logical\n"
        "\n"
        "rank: 0: { hostname: a; cpu: {0-3} ; gpu: * ; mem: * }\n"
        "rank: 1: { hostname: a; cpu: {4-7} ; gpu: * ; mem: * }\n"
        "rank: 2: { hostname: b; cpu: {0-7} ; gpu: * ; mem: * }\n"
    )
    with pytest.raises(ValueError, match="a has 1 CPUs for 2 processes"):
        rank_file(slots, HostParts(1, 0))


def test_words() -> None:
    plain = MpiJob(("python", "train.py"), 4, parse_hosts("a:2,b:2"))
    assert shlex.join(jsrun_argv(plain, Path("ranks"))) == (
        "jsrun --erf_input ranks python train.py"
    )
    job = MpiJob(
        ("cd x && exec train",),
        4,
        parse_hosts("a:2,b:2"),
        output_directory=Path("logs"),
        is_tcp_only=True,
        mpi_options=("-gpu",),
        binding_options=("-disable_gpu_hooks",),
    )
    assert shlex.join(jsrun_argv(job, Path("ranks"))) == (
        "jsrun --erf_input ranks --stdio_stdout logs/stdout.%t --stdio_stderr logs/stderr.%t "
        "--smpiargs '-disable_gpu_hooks -tcp -gpu' /bin/sh -c 'cd x && exec train'"
    )
    of_jsrun = replace(plain, mpi_options=("--env", "A=1"))
    assert shlex.join(jsrun_argv(of_jsrun, Path("ranks"))) == (
        "jsrun --erf_input ranks --env A=1 python train.py"
    )


def test_jsrun_gets_a_file_that_is_gone_afterwards(ssh: Path) -> None:
    program = ssh / "jsrun"
    program.write_text('#!/bin/sh\ncp "$2" "$3"\necho "$2" >"$4"\nexit 7\n')
    program.chmod(0o755)
    copy, name = ssh / "copy", ssh / "name"
    job = MpiJob((str(copy), str(name)), 2, parse_hosts("node-1:2"))
    environ = {"LSB_JOBID": "1", "PATH": f"{ssh}:/usr/bin:/bin"}
    assert mpi_launch.run_jsrun(job, environ, {}, is_verbose=False) == 7
    assert "rank: 1: { hostname: node-1; cpu: {4-7}" in copy.read_text()
    assert not Path(name.read_text().strip()).exists()


@pytest.mark.parametrize(
    ("environ", "reason"),
    [({}, "no LSF job here"), ({"LSB_JOBID": "1", "PATH": "/none"}, "no jsrun in the PATH")],
)
def test_where_there_can_be_no_jsrun(environ: dict[str, str], reason: str) -> None:
    job = MpiJob(("x",), 1, parse_hosts("a:1"))
    with pytest.raises(ValueError, match=reason):
        mpi_launch.run_jsrun(job, environ, {}, is_verbose=False)


@pytest.fixture
def by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who has started processes; none are."""
    seen: list[str] = []

    def jsrun(*_: object, **__: object) -> int:
        seen.append("jsrun")
        return 0

    def run_job(*_: object) -> JobOutcome:
        seen.append("horovodrun")
        return JobOutcome(0)

    monkeypatch.setattr(mpi_launch, "run_jsrun", jsrun)
    monkeypatch.setattr(mpi_launch, "check_mpi", lambda _: None)
    monkeypatch.setattr(mpi_library, "why_not_built", lambda: None)
    monkeypatch.setattr(cli, "run_job", run_job)
    return seen


@pytest.mark.parametrize(
    ("words", "who", "said"),
    [
        ("", "jsrun", "in this LSF job jsrun starts the processes; with --gloo"),
        ("--jsrun", "jsrun", ""),
        ("--gloo", "horovodrun", ""),
        ("-H localhost:2", "horovodrun", "starts the processes itself: as the options require"),
    ],
)
def test_jsrun_is_the_default_in_a_job_of_lsf(
    ssh: Path, by: list[str], words: str, who: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (ssh / "jsrun").write_text("#!/bin/sh\n")
    (ssh / "jsrun").chmod(0o755)
    environ = {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "node-1 8", "PATH": f"{ssh}:/usr/bin:/bin"}
    assert cli.main(["-np", "2", *words.split(), "python", "x.py"], environ) == 0
    assert by == [who]
    err = capsys.readouterr().err
    assert said in err
    assert bool(said) == bool(err)


def test_without_jsrun_horovodrun_starts_the_processes(
    by: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "localhost 8", "PATH": "/none"}
    assert cli.main(["-np", "2", "python", "x.py"], environ) == 0
    assert by == ["horovodrun"]
    assert "itself: there is no jsrun in the PATH" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "count"), [((), 2), (("-np", "1"), 1)])
def test_it_starts_them_on_the_hosts_of_the_job(
    ssh: Path, words: tuple[str, ...], count: int
) -> None:
    (ssh / "ssh").unlink()  # this machine is not asked by it for its two GPUs
    here = os.uname().nodename
    environ = {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": f"batch 1 {here} 8"}
    plan = cli.plan_of(cli.make_parser().parse_args(words), ["x"], environ)
    assert isinstance(plan, JobPlan)
    assert [slot.hostname for slot in plan.slots] == [here] * count
