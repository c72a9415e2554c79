"""Command lines as a whole: the job that they plan, what is refused and how."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from horovod.core import gpus
from horovod.core.base import mpi_library
from horovod.launch.cli import build_info
from horovod.launch.cli import main as cli
from horovod.launch.cli.parser import make_parser
from horovod.launch.experiment.schema import read_experiment
from horovod.launch.model.host_plan import command_argv
from horovod.launch.model.job_plan import JobOutcome, JobPlan, OtherHosts
from horovod.launch.model.ssh import SshOptions
from horovod.launch.workers.processes import describe_exit
from horovod.metrics import setup


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[JobPlan]:
    """Jobs are written down instead of run."""
    seen: list[JobPlan] = []

    def write_down(plan: JobPlan, environ: object) -> JobOutcome:
        seen.append(plan)
        return JobOutcome(0)

    monkeypatch.setattr(cli, "run_job", write_down)
    return seen


def test_a_plan(plans: list[JobPlan]) -> None:
    words = "-np 2 --gloo -H 127.0.0.1:3 --start-timeout 7.5 --verbose python x.py --gloo"
    assert cli.main(words.split()) == 0
    (plan,) = plans
    assert plan.command == ("python", "x.py", "--gloo")
    assert [(slot.rank, slot.hostname, slot.local_size) for slot in plan.slots] == [
        (0, "127.0.0.1", 2),
        (1, "127.0.0.1", 2),
    ]
    assert plan.extra_environment == {"HOROVOD_START_TIMEOUT": "7.5"}
    assert plan.is_verbose
    assert not plan.is_timestamped
    assert cli.main(["-np", "2", "-prefix-timestamp", "x"]) == 0
    assert plans[1].is_timestamped
    assert plans[1].extra_environment == {}


def test_an_option_wins_over_the_file(plans: list[JobPlan], tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "controller: mpi\n"
        "params: {cache_capacity: 5, cycle_time_ms: 2}\n"
        "stall_check: {enabled: false}\n"
    )
    words = f"-np 1 --gloo --stall-check --config-file {file} --cache-capacity 0 x"
    assert cli.main(words.split()) == 0
    assert plans[0].extra_environment == {
        "HOROVOD_CACHE_CAPACITY": "0",
        "HOROVOD_CYCLE_TIME": "2",
        "HOROVOD_STALL_CHECK_DISABLE": "0",
    }


def test_a_wrong_file_is_refused_by_the_path_of_its_key(
    plans: list[JobPlan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "settings.yaml").write_text("params:\n  cache_capacity: many\n")
    with pytest.raises(SystemExit):
        cli.main(["-np", "1", "--config-file", f"{tmp_path}/settings.yaml", "x"])
    text = "settings.yaml, line 2: params.cache_capacity=many: expected an integer"
    assert text in capsys.readouterr().err
    assert not plans


def test_two_names_of_this_machine_are_one_host(plans: list[JobPlan]) -> None:
    assert cli.main(["-np", "3", "-H", "localhost:1,127.0.0.1:2", "x"]) == 0
    assert [slot.local_rank for slot in plans[0].slots] == [0, 1, 2]


def test_other_machines(plans: list[JobPlan]) -> None:
    words = "-np 3 -H localhost:1,a.invalid:1,b.invalid:1,c.invalid:1 -p 2222 -i key"
    more = "--network-interfaces eth0,ib0 --network-interface eth1 --network-interface eth0"
    assert cli.main([*words.split(), *more.split(), "--start-timeout", "90", "x"]) == 0
    (plan,) = plans
    assert [slot.hostname for slot in plan.slots] == ["localhost", "a.invalid", "b.invalid"]
    assert plan.others == OtherHosts(
        addresses={"a.invalid": (), "b.invalid": ()},
        ssh=SshOptions(2222, "key"),
        interfaces=("eth0", "ib0", "eth1"),
        start_timeout_s=90.0,
    )
    assert plan.interfaces == ("eth0", "ib0", "eth1")


def test_names_of_this_machine_between_others_are_one_host(plans: list[JobPlan]) -> None:
    assert cli.main(["-np", "3", "-H", "localhost:1,a.invalid:1,127.0.0.1:1", "x"]) == 0
    (plan,) = plans
    assert [slot.hostname for slot in plan.slots] == ["localhost", "localhost", "a.invalid"]
    assert plan.interfaces == ()


def test_a_list_behind_the_option_for_one_interface(plans: list[JobPlan]) -> None:
    words = ["-np", "1", "--network-interface", "a,b", "x"]
    with pytest.warns(DeprecationWarning, match="use --network-interfaces"):
        assert cli.main(words) == 0
    assert plans[0].others.interfaces == ("a", "b")


def test_a_hostfile_and_a_folder_for_output(plans: list[JobPlan], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    words = f"-np 2 -hostfile {tmp_path}/hosts --output-filename {tmp_path}/logs x"
    assert cli.main(words.split()) == 0
    assert [slot.local_size for slot in plans[0].slots] == [2, 2]
    assert plans[0].output_directory == tmp_path / "logs"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("-np 2 -hostfile /no-such-file x", "error: --hostfile /no-such-file: No such file"),
        ("-np 100000 x", "1 or more, at most 99999"),
        ("--doctor a b", "error: b: --doctor looks at one job, a"),
        ("-np 2 -hostfile x -H localhost:2 x", "not allowed with"),
        ("python x.py", "-np"),
        ("-np 2", "no command"),
        ("-np 0 x", "1 or more"),
        ("-np two x", "1 or more"),
        ("-np 2 -H other.invalid:1 x", "2 processes were asked for, but the hosts have 1 slots"),
        ("-np 2 --hosts=-oProxyCommand:2 x", "invalid host input '-oProxyCommand:2'"),
        ("-np 2 -p 0 x", "expected a port from 1 to 65535"),
        ("-np 2 --ssh-port ssh x", "expected a port from 1 to 65535"),
        ("-np 2 -H localhost x", "expected name:slots"),
        ("-np 3 -H localhost:2 x", "3 processes were asked for, but the hosts have 2 slots"),
        ("-np 2 --start-timeout 0 x", "error: --start-timeout 0: must be at least 0.001"),
        ("-np 2 --cache-capacity -1 x", "error: --cache-capacity -1: must be at least 0"),
        ("-np 2 --config-file /no-such-file x", "/no-such-file"),
        ("-np 2 --mpi x", "error: --mpi: mpi4py is not installed"),
        ("-np 2 --mpi --gloo x", "not allowed with argument"),
        ("-np 2 --jsrun x", "error: --jsrun: mpi4py is not installed"),
        ("--experiment x.yml --mpi", "error: --mpi and --experiment: the processes are started"),
        ("-np 2 --stranger x", "--stranger: no such option"),
    ],
)
def test_wrong_command_lines_say_what_is_wrong(
    words: str,
    text: str,
    plans: list[JobPlan],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mpi_library, "why_not_built", lambda: "mpi4py is not installed")
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    assert ended.value.code == 2
    assert text in capsys.readouterr().err
    assert not plans


@pytest.mark.parametrize(
    ("words", "notice"),
    [
        ("--mpi-args --oversubscribe", "--mpi-args has an effect only with --mpi or --jsrun"),
        ("--mpi-args=-v", "--mpi-args has an effect only with --mpi or --jsrun"),
        ("--binding-args=-v", "--binding-args has an effect only with --mpi or --jsrun"),
        ("--max-np 3", "--max-np has an effect only in an elastic job, see --min-np"),
        ("--slots-per-host 3", "--slots-per-host has an effect only with --kubernetes or --host-"),
        ("--reset-limit 3", "--reset-limit has an effect only in an elastic job"),
        ("--blacklist-cooldown-range 1 2", "--blacklist-cooldown-range has an effect only in an"),
    ],
)
def test_options_that_change_nothing_are_taken_with_a_notice(
    words: str, notice: str, plans: list[JobPlan], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(f"-np 2 {words} x".split()) == 0
    assert capsys.readouterr().err.startswith(f"horovodrun: {notice}")
    assert len(plans) == 1


def test_tcp_only(plans: list[JobPlan], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["-np", "2", "--tcp", "x"]) == 0
    assert plans[0].extra_environment == {"NCCL_IB_DISABLE": "1"}
    assert capsys.readouterr().err == ""


def test_notices_of_a_file(
    plans: list[JobPlan], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file.yaml").write_text("params: {cycle_time: 3}")
    assert cli.main(f"-np 2 --config-file {tmp_path}/file.yaml x".split()) == 0
    assert capsys.readouterr().err.count("did you mean cycle_time_ms?") == 1


def test_a_file_that_is_not_there_is_named_with_its_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["-np", "2", "--config-file", "nosuch.yaml", "x"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(
        "error: --config-file nosuch.yaml: No such file or directory\n"
    )


def test_version_is_just_the_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "__version__", "1.2.3")
    assert cli.main(["-v"]) == 0
    assert capsys.readouterr().out == "1.2.3\n"


def test_check_build(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "__version__", "1.2.3")
    monkeypatch.setattr(build_info, "is_installed", lambda module: module == "torch")
    monkeypatch.setattr(mpi_library, "why_not_built", lambda: "nothing is there")
    monkeypatch.setattr(gpus, "nccl_version", lambda: 0)
    monkeypatch.setattr(gpus, "nccl_problem", lambda: "no driver")
    monkeypatch.setattr(build_info, "find_cipher", lambda: "libcrypto.so.3 is not there")
    assert cli.main(["-cb"]) == 0
    table = capsys.readouterr().out
    assert table == (
        "Horovod v1.2.3:\n"
        "\n"
        "Available Frameworks:\n"
        "    [ ] TensorFlow\n"
        "    [X] PyTorch\n"
        "    [ ] MXNet\n"
        "    [ ] JAX\n"
        "    [ ] Keras\n"
        "    [X] NumPy\n"
        "\n"
        "Available Controllers:\n"
        "    [ ] MPI\n"
        "    [X] Gloo\n"
        "\n"
        "Available Tensor Operations:\n"
        "    [ ] NCCL\n"
        "    [ ] DDL\n"
        "    [ ] CCL\n"
        "    [ ] MPI\n"
        "    [X] Gloo\n"
        "    [X] Native\n"
        "\n"
        "Available Connections Between Hosts:\n"
        "    [ ] OpenSSL\n"
    )
    assert cli.main(["--check-build", "--verbose"]) == 0
    problems = "NCCL: no driver\nMPI: nothing is there\nOpenSSL: libcrypto.so.3 is not there\n"
    assert capsys.readouterr().out == "\n" + table + problems
    monkeypatch.setattr(gpus, "nccl_version", lambda: 22703)
    assert cli.main(["--check-build"]) == 0
    assert capsys.readouterr().out == table.replace("[ ] NCCL", "[X] NCCL")
    monkeypatch.setattr(gpus, "nccl_version", lambda: 0)
    monkeypatch.setattr(mpi_library, "why_not_built", lambda: None)
    monkeypatch.setattr(build_info, "is_installed", lambda module: False)
    assert cli.main(["--check-build"]) == 0
    assert capsys.readouterr().out == (
        table.replace("[ ] MPI", "[X] MPI")
        .replace("[X] PyTorch", "[ ] PyTorch")
        .replace("[X] Gloo\n", "[ ] Gloo\n")
        .replace("[ ] Gloo\n\nAvailable Tensor", "[X] Gloo\n\nAvailable Tensor")
    )
    monkeypatch.setattr(
        build_info, "find_cipher", lambda: SimpleNamespace(version="OpenSSL 3", path="x")
    )
    assert "Between Hosts:\n    [X] OpenSSL 3 (x)\n" in build_info.build_table("1.2.3")
    monkeypatch.setattr(build_info, "is_installed", lambda module: module == "mxnet")
    assert "[ ] PyTorch\n    [X] MXNet" in build_info.build_table("1.2.3")


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help-all"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "horovodrun -np 4 python train.py" in text
    assert "HOROVOD_LOCAL_RANK" in text
    for heading in ("start:", "output:", "tuning:", "stall check:", "examples:", "exit status:"):
        assert f"\n{heading}\n" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_the_short_help_fits_a_screen_and_names_what_is_there(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([option])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 32
    named = set(re.findall(r"(?<![\w-])-{1,2}[a-zA-Z][\w-]*", text)) - {"--epochs"}
    assert named <= set(make_parser()._option_string_actions)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("--reprot x.html -np 2 python x.py", "--reprot: no such option; did you mean --report?"),
        ("--np 2 python x.py", "--np: no such option; did you mean -np?"),
        ("--nproc_per_node=2 x.py", "--nproc_per_node: no such option; did you mean -np, the num"),
        ("-np 2 --log_level info x", "--log_level: no such option; did you mean --log-level?"),
        ("-np 2 --zzzzzzzz x", "--zzzzzzzz: no such option\n"),
        ("-np 2 x-y-z.py --lr 1", "x-y-z.py: no program; did you mean: python x-y-z.py --lr 1?"),
    ],
)
def test_mistakes_get_the_word_that_was_meant(
    words: str, meant: str, plans: list[JobPlan], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    assert ended.value.code == 2
    assert f"horovodrun: error: {meant}" in capsys.readouterr().err
    assert plans == []


def test_a_python_file_is_no_program_unless_it_can_be_run(
    plans: list[JobPlan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("#!/usr/bin/env python3\n")
    with pytest.raises(SystemExit):
        cli.main(["-np", "2", str(script)])
    assert f"{script}: a Python file, not a program" in capsys.readouterr().err
    script.chmod(0o755)
    assert cli.main(["-np", "2", str(script)]) == 0


def test_metrics_without_their_package_are_refused_before_the_start(
    plans: list[JobPlan], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "find_spec", lambda name: None)
    words = ["-np", "2", "--metrics-port", "9000"]
    with pytest.raises(SystemExit):
        cli.main([*words, sys.executable, "x.py"])
    assert "prometheus-client is not installed" in capsys.readouterr().err
    assert cli.main([*words, "another-program"]) == 0


def test_a_timeline_that_cannot_be_written_is_refused_before_the_start(
    plans: list[JobPlan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["-np", "2", "--timeline-filename"]
    with pytest.raises(SystemExit):
        cli.main([*words, str(tmp_path / "none" / "t.json"), "true"])
    assert f"(HOROVOD_TIMELINE): {tmp_path}/none is no folder" in capsys.readouterr().err
    assert plans == []
    assert cli.main([*words, str(tmp_path / "t.json"), "true"]) == 0
    assert cli.main([*words, "DYNAMIC", "true"]) == 0


def test_a_log_of_autotuning_that_cannot_be_written_is_refused_before_the_start(
    plans: list[JobPlan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["-np", "2", "--autotune-log-file", str(tmp_path / "none" / "log.csv")]
    with pytest.raises(SystemExit):
        cli.main([*words, "--autotune", "true"])
    assert f"(HOROVOD_AUTOTUNE_LOG): {tmp_path}/none is no folder" in capsys.readouterr().err
    assert cli.main([*words, "true"]) == 0  # nothing is written


def test_a_shell_completes_options(tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    found = tmp_path / "found"
    environ = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(found),
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": "horovodrun --stall-check-w",
        "COMP_POINT": "26",
    }
    words = [sys.executable, "-m", "horovod.runner.launch"]
    subprocess.run(words, env=environ, check=True, timeout=500)
    assert found.read_text().split() == ["--stall-check-warning-time-seconds"]


def test_several_words_run_as_they_are_and_one_with_spaces_by_a_shell() -> None:
    assert command_argv(["python", "a b"]) == ["python", "a b"]
    assert command_argv(["python"]) == ["python"]
    assert command_argv(["cd x && y"]) == ["/bin/sh", "-c", "cd x && y"]


def test_exits_in_words() -> None:
    assert describe_exit(3) == "exited with code 3"
    assert describe_exit(-9) == "was ended by SIGKILL"
    assert describe_exit(-50) == "was ended by signal 50"


def test_help_shows_a_file_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help-all"])
    page = capsys.readouterr().out
    lines = page[page.index("  project: ") :].splitlines()
    file = read_experiment(
        "\n".join(lines[: lines.index("      - python train.py --lr {{lr}}") + 1])
    )
    assert (file.worker_count, len(file.parameters)) == (2, 1)


EXPERIMENT = "project: a\ntrain: {resources: {}, run: [x]}\n"


@pytest.mark.parametrize(
    "words", ["-f FILE", "--experiment FILE", "--experiment=FILE", "--exp FILE"]
)
def test_an_experiment_is_shown_and_nothing_is_made(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "riseml.yml").write_text(EXPERIMENT)
    arguments = [*words.replace("FILE", "riseml.yml").split(), "--dry-run"]
    assert cli.main(arguments, {"PATH": ""}) == 0
    assert "1. x" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["riseml.yml"]


def test_problems_of_an_experiment_file_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "riseml.yml"
    file.write_text(
        EXPERIMENT.replace("resources: {}", "resources: {gpus: x}").replace("a", "7", 1)
    )
    assert cli.main(["-f", str(file)], {}) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{file}: 2 problems, nothing was started" in err
    assert "  train.resources.gpus (line 2): found the text 'x', expected a whole number" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-f FILE -np 2", "-np and --experiment"),
        ("-f FILE python x.py", "python: a command and --experiment"),
        ("-np 2 --dry-run python x.py", "--dry-run goes with --experiment FILE"),
        ("-f missing.yml", "--experiment missing.yml: No such file or directory"),
    ],
)
def test_what_does_not_go_with_an_experiment(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "riseml.yml"
    file.write_text(EXPERIMENT)
    with pytest.raises(SystemExit) as ended:
        cli.main(words.replace("FILE", str(file)).split(), {})
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
