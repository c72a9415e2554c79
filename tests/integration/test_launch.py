"""The real launcher with real processes: what starts, where, and with which environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from launching import LAUNCHER, TIMEOUT_S, run, start

pytestmark = pytest.mark.usefixtures("no_child_is_left")


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_rank_gets_its_place(count: int) -> None:
    places = "$HOROVOD_RANK/$HOROVOD_SIZE $HOROVOD_LOCAL_RANK/$HOROVOD_LOCAL_SIZE"
    script = f'echo "{places} $HOROVOD_HOSTNAME"'
    status, out, err = run("-np", str(count), "--gloo", "sh", "-c", script)
    assert (status, err) == (0, "")
    expected = [f"[{r}]<stdout>:{r}/{count} {r}/{count} localhost" for r in range(count)]
    assert sorted(out.splitlines()) == expected


def test_the_environment_of_a_worker() -> None:
    environ = {
        **os.environ,
        "OLDPWD": "/",
        "BASH_FUNC_f%%": "() { :; }",
        "KEPT": "yes",
        "CUDA_VISIBLE_DEVICES": "3",
    }
    script = "import os, json; print(json.dumps(dict(os.environ)))"
    status, out, _ = run(
        "-np", "1", "--start-timeout", "12", sys.executable, "-c", script, env=environ
    )
    assert status == 0
    seen = json.loads(out.removeprefix("[0]<stdout>:"))
    assert seen["KEPT"] == "yes"
    assert seen["CUDA_VISIBLE_DEVICES"] == "3"
    assert seen["HOROVOD_START_TIMEOUT"] == "12"
    assert seen["PYTHONUNBUFFERED"] == "1"
    assert not {"OLDPWD", "BASH_FUNC_f%%", "HOROVOD_CPU_OPERATIONS"} & set(seen)


def test_the_secret_is_in_no_command_line_and_no_message() -> None:
    script = 'tr "\\0" " " < /proc/$PPID/cmdline; ps -eo args; echo "secret $_HOROVOD_SECRET_KEY"'
    status, out, err = run("-np", "1", "--verbose", "sh", "-c", script)
    assert status == 0
    *lines, told = out.splitlines()
    secret = told.split()[-1]
    assert len(secret) == 44
    assert secret not in err
    assert not [line for line in lines if secret in line]


def test_one_word_with_spaces_is_a_shell_command() -> None:
    status, out, _ = run("-np", "1", "cd / && pwd")
    assert (status, out) == (0, "[0]<stdout>:/\n")


def test_words_reach_the_command_as_they_are() -> None:
    status, out, _ = run("-np", "1", "printf", "%s|", "a b", "$HOME", "*", "--verbose", "")
    assert (status, out) == (0, "[0]<stdout>:a b|$HOME|*|--verbose||\n")


def test_rank_0_reads_standard_input_and_the_others_read_nothing() -> None:
    with start("-np", "2", "sh", "-c", "cat; echo end", stdin=subprocess.PIPE) as process:
        out, _ = process.communicate(b"typed\n", timeout=TIMEOUT_S)
    assert sorted(out.splitlines()) == [
        b"[0]<stdout>:end",
        b"[0]<stdout>:typed",
        b"[1]<stdout>:end",
    ]


@pytest.mark.parametrize("word", ["no-such-command", "./no-such-command"])
def test_a_command_that_does_not_exist(word: str) -> None:
    status, out, err = run("-np", "2", word, "x")
    assert (status, out) == (127, "")
    assert "command not found" in err
    assert err.count(word) == 1


def test_a_command_that_cannot_be_executed(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")
    status, _, err = run("-np", "2", str(tmp_path / "script"))
    assert status == 126
    assert "not executable" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-np", "4", "-H", "localhost:2", "true"], "4 processes were asked for"),
        (["-np", "2", "-H", "localhost", "true"], "name:slots"),
        (["-np", "2"], "no command"),
    ],
)
def test_wrong_command_lines(arguments: list[str], text: str) -> None:
    status, _, err = run(*arguments)
    assert status == 2
    assert text in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "options", [(), ("--min-np", "2", "--blacklist-cooldown-range", "1", "60")]
)
def test_too_few_descriptors_are_told_in_a_line(options: tuple[str, ...]) -> None:
    limited = ["/bin/sh", "-c", 'ulimit -n 12; exec "$@"', "sh"]
    words = [*limited, *LAUNCHER, "-np", "2", *options, "true"]
    job = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert job.returncode == 1
    assert job.stderr.startswith("horovodrun: the job cannot run: Too many open files; ")
    assert job.stderr.count("\n") == 1


def test_hosts_of_this_machine() -> None:
    status, out, _ = run("-np", "1", "-H", "127.0.0.1:4", "sh", "-c", "echo $HOROVOD_HOSTNAME")
    assert (status, out) == (0, "[0]<stdout>:127.0.0.1\n")


def test_version_and_build_table() -> None:
    status, version, _ = run("--version")
    assert status == 0
    assert version.count("\n") == 1
    status, table, _ = run("-cb")
    assert status == 0
    assert table.startswith(f"Horovod v{version.strip()}:\n\nAvailable Frameworks:\n")


def test_verbose_names_every_process() -> None:
    status, _, err = run("-np", "2", "--verbose", "true")
    assert status == 0
    assert "started rank 0 on localhost (pid " in err
    assert "started rank 1 on localhost (pid " in err


def test_the_ranks_of_a_job_meet() -> None:
    script = (
        "import os\n"
        "from horovod.rendezvous.bootstrap import identify, meet\n"
        "identity = identify(os.environ)\n"
        "mesh = meet(identity, 1, 4096, 60, os.environ)\n"
        "assert mesh.pids[identity.rank] == os.getpid() and len(set(mesh.pids)) == 4\n"
    )
    status, _, err = run("-np", "4", sys.executable, "-c", script)
    assert (status, err) == (0, "")


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_a_process_group_of_torch_has_the_ranks_of_the_job() -> None:
    worker = Path(__file__).with_name("workers") / "torch_process_group.py"
    status, out, err = run("-np", "2", sys.executable, worker)
    assert status == 0, err
    assert sorted(out.splitlines()) == [f"[{rank}]<stdout>:same 2 2" for rank in (0, 1)]
