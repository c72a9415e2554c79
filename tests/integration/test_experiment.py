"""Experiments with real processes: barriers, grids, failures, ends; nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from launching import assert_gone, default_signals

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 500


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    """The test adopts processes that have lost their parent, and finds them too."""
    before = set(psutil.Process().children(recursive=True))
    yield
    left = set(psutil.Process().children(recursive=True)) - before
    living = [p for p in psutil.wait_procs(left, timeout=200)[1] if p.status() != "zombie"]
    for process in living:
        process.kill()
    assert not living


class Folder:
    """A folder with an experiment file; ``horovodrun`` starts there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outputs = path / "output" / "demo"
        self._processes: list[subprocess.Popen[str]] = []

    def start(
        self, run: object, *options: str, workers: object = 2, gpus: int = 0, **train: object
    ) -> subprocess.Popen[str]:
        tensorflow = {"horovod": {"workers": workers}}
        fields = {"framework": "tensorflow", "tensorflow": tensorflow, "resources": {"gpus": gpus}}
        content = {"project": "demo", "train": {**fields, "run": run, **train}}
        (self.path / "riseml.yml").write_text(yaml.safe_dump(content))
        return self.start_file("riseml.yml", *options)

    def start_file(self, *arguments: str) -> subprocess.Popen[str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        process = subprocess.Popen(
            [sys.executable, "-m", "horovod.runner.launch", "--experiment", *arguments],
            cwd=self.path,
            env={"CUDA_VISIBLE_DEVICES": "4,5,6,7", **os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=default_signals,
        )
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End the processes that a failed test has left."""
        for process in self._processes:
            with process:
                process.kill()

    def run(self, *arguments: object, **train: object) -> tuple[int, str, str]:
        return finish(self.start(*arguments, **train))  # type: ignore[arg-type]


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    with process:
        try:
            out, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    return process.returncode, out, err


def told(process: subprocess.Popen[str], count: int) -> dict[str, str]:
    """The last word of each of the next lines, by prefix."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(count)]
    assert all(lines), process.stderr and process.stderr.read()
    parts = [line.split("<stdout>:") for line in lines]
    return {prefix: text.split()[-1] for prefix, text in parts}


def states(err: str) -> dict[str, str]:
    """The final state of each experiment by its name, from the table at the end."""
    table = err[err.rindex("Experiment ") :]
    return {line.split()[0]: line for line in table.splitlines()[2:] if line}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path)
    yield folder
    folder.close()


def test_a_line_starts_when_all_processes_have_finished_the_one_before(folder: Folder) -> None:
    os.mkfifo(folder.path / "gate")
    first = "echo pid $$; [ $HOROVOD_RANK = 0 ] || { read word < gate; : > $OUTPUT_DIR/done; }"
    second = 'test -e "$OUTPUT_DIR/done" && echo second $HOROVOD_RANK/$HOROVOD_SIZE $EXPERIMENT_ID'
    process = folder.start([first, second])
    pids = told(process, 2)
    # Rank 1 ends its line only now, after rank 0 has passed its own.
    assert_gone([int(pids["[1][0]"])])
    (folder.path / "gate").write_text("go\n")
    status, out, err = finish(process)
    assert status == 0, err
    assert sorted(out.splitlines()) == [
        "[1][0]<stdout>:second 0/2 1",
        "[1][1]<stdout>:second 1/2 1",
    ]
    assert "Finished" in states(err)["1"]


def test_every_line_is_a_world_of_its_own(folder: Folder) -> None:
    code = "import horovod.numpy as hvd; hvd.init(); print(hvd.allgather_object(hvd.rank()))"
    line = f'{sys.executable} -c "{code}"'
    status, out, err = folder.run([line, line], workers={"count": 1, "processes": 2})
    assert status == 0, err
    assert sorted(out.splitlines()) == 2 * ["[1][0]<stdout>:[0, 1]"] + 2 * ["[1][1]<stdout>:[0, 1]"]


def test_a_grid_runs_two_at_a_time_and_goes_on_after_a_failure(folder: Folder) -> None:
    os.mkfifo(folder.path / "pipe")  # from experiment 1 to experiment 2, which run together
    os.mkfifo(folder.path / "done")  # so rank 1 fails after rank 0 has read
    line = (
        "case {{n}}$HOROVOD_RANK in 10) echo met > pipe;; 20) cat pipe > done;; "
        "21) cat done; exit 7;; "
        '*) echo "$N {{ n }} $(basename $OUTPUT_DIR)";; esac'
    )
    status, out, err = folder.run(
        [line, "echo after {{n}}"], parameters={"n": [1, 2, 3, 4]}, concurrency=2
    )
    assert status == 1
    assert "[1.3][1]<stdout>:3 3 3" in out.splitlines()
    assert [n for n in "1234" if f"after {n}" in out] == ["1", "3", "4"]
    assert " 2 running)" in err
    assert " 3 running)" not in err
    final = states(err)
    assert [final[f"1.{n}"].split()[2] for n in (1, 2, 3, 4)] == [
        *("Finished", "Failed", "Finished", "Finished")
    ]
    assert "line 1, rank 1 exited with code 7" in final["1.2"]
    assert "1.2 n=2 --> Failed: line 1, rank 1 exited with code 7" in err


def test_without_horovod_one_process_runs_the_lines(folder: Folder) -> None:
    (folder.path / "plain.yml").write_text(
        "project: demo\ntrain:\n  resources: {gpus: 2}\n  run:\n"
        "    - echo $HOROVOD_SIZE $CUDA_VISIBLE_DEVICES\n    - exit 3\n    - echo never\n"
    )
    status, out, err = finish(folder.start_file("plain.yml"))
    assert (status, out) == (1, "[1][0]<stdout>:1 4,5\n")
    assert "line 2, rank 0 exited with code 3" in states(err)["1"]


def test_processes_see_the_gpus_of_their_worker_and_their_place(folder: Folder) -> None:
    status, out, err = folder.run(
        "echo $CUDA_VISIBLE_DEVICES", workers=2, gpus=1, parameters={"n": [1, 2]}, concurrency=2
    )
    assert status == 0, err
    seen = {tuple(line.split("<stdout>:")) for line in out.splitlines()}
    first, second = (
        {gpus for name, gpus in seen if name.startswith(n)} for n in ("[1.1]", "[1.2]")
    )
    assert (first, second) == ({"4,5"}, {"6,7"})


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_more_gpus_than_the_machine_has(folder: Folder, options: tuple[str, ...]) -> None:
    status, out, err = folder.run("echo never", *options, workers=3, gpus=2)
    assert status == 2
    assert ("3 x 2 = 6 each (workers x gpus)" in out) == bool(options)
    assert "<stdout>" not in out
    assert "train.resources.gpus: 3 workers with 2 each need 6, and this machine has 4" in err
    assert not folder.outputs.exists()


def test_output_is_passed_on_whole(folder: Folder) -> None:
    count = 20_000
    line = f"i=0; while [ $i -lt {count} ]; do echo $i-abcdefghijklmnopqrstuvwxyz; i=$((i+1)); done"
    status, out, err = folder.run(
        line, "--output-filename", "logs", workers=1, parameters={"n": [1, 2]}, concurrency=2
    )
    assert status == 0, err
    for name in ("1.1", "1.2"):
        found = re.findall(rf"^\[{name}\]\[0\]<stdout>:(\d+)-[a-z]{{26}}$", out, re.MULTILINE)
        assert [*map(int, found)] == [*range(count)]
        log = folder.path / "logs" / name / "line.1" / "rank.0" / "stdout"
        assert log.read_text().count("\n") == count


SLEEPER = "trap 'echo asked' TERM; sleep 1000 & echo $!; wait"
STUBBORN = "trap '' TERM; sleep 1000 & echo $!; wait"


def started(folder: Folder, line: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Two of three experiments run, with two sleeping processes each."""
    process = folder.start(line, parameters={"n": [1, 2, 3]}, concurrency=2)
    return process, [int(pid) for pid in told(process, 4).values()]


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_all_experiments(folder: Folder, signum: int, status: int) -> None:
    process, pids = started(folder, SLEEPER)
    process.send_signal(signum)
    code, out, err = finish(process)
    assert code == status
    assert out.count("asked") == 4
    assert_gone(pids)
    final = states(err)
    assert [final[f"1.{n}"].split()[2] for n in (1, 2, 3)] == 3 * ["Killed"]
    assert "before its first line" in final["1.3"]


def test_a_second_ctrl_c_kills_at_once(folder: Folder) -> None:
    process, pids = started(folder, STUBBORN)
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    asked = 0
    while asked < 2:  # both launchers wait for processes that ignore SIGTERM
        line = process.stderr.readline()
        assert line
        asked += "SIGTERM: ending 2 processes" in line
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130
    assert err.count("did not end before a second signal") == 2
    assert_gone(pids)


def test_nothing_outlives_a_killed_launcher(folder: Folder) -> None:
    process, pids = started(folder, SLEEPER)
    process.kill()
    code, _, _ = finish(process)
    assert code == -signal.SIGKILL
    assert_gone(pids)


def test_a_launcher_that_is_killed_fails_its_experiment_only(folder: Folder) -> None:
    os.mkfifo(folder.path / "gate")
    line = "if [ $N = 1 ]; then echo $$; sleep 1000; else read word < gate; echo $word; fi"
    process = folder.start(line, workers=1, parameters={"n": [1, 2]}, concurrency=2)
    (pid,) = told(process, 1).values()
    psutil.Process(psutil.Process(int(pid)).ppid()).kill()
    assert_gone([int(pid)])
    (folder.path / "gate").write_text("well\n")
    status, out, err = finish(process)
    assert (status, out) == (1, "[1.2][0]<stdout>:well\n")
    assert "the launcher was ended by SIGKILL" in states(err)["1.1"]
    assert "Finished" in states(err)["1.2"]


def test_an_experiment_without_a_folder_fails_alone(folder: Folder) -> None:
    # The first experiment makes a file in the place of the second one's folder.
    line = "[ $N != 1 ] || : > output/demo/1/2; echo $N"
    status, out, err = folder.run(line, workers=1, parameters={"n": [1, 2, 3]})
    assert status == 1
    assert out.splitlines() == ["[1.1][0]<stdout>:1", "[1.3][0]<stdout>:3"]
    assert "no folder for its output: File exists" in states(err)["1.2"]


def test_the_end_of_the_reader_ends_all(folder: Folder) -> None:
    process, pids = started(folder, "while :; do echo $$; done")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(TIMEOUT_S) == 128 + signal.SIGPIPE
    process.stderr.close()
    assert "SIGPIPE: ending" in err
    assert_gone(pids)


def test_the_copy_of_the_file_runs_one_experiment_again(folder: Folder) -> None:
    line = "echo {{lr}} $LR"
    status, out, err = folder.run(line, workers=1, parameters={"lr": ["1e-6", 0.5]})
    assert status == 0, err
    copy = folder.outputs / "1" / "1" / "riseml-configuration.yml"
    status, out, err = finish(folder.start_file(str(copy)))
    assert (status, out) == (0, "[2.1][0]<stdout>:1e-6 1e-6\n"), err


def test_the_example_trains_and_saves(folder: Folder) -> None:
    (folder.path / "examples").symlink_to(ROOT / "examples")
    text = (ROOT / "examples" / "experiments" / "digits.yml").read_text()
    assert "digits.py" in text
    status, out, err = finish(folder.start_file("examples/experiments/digits.yml"))
    assert status == 0, out + err
    assert out.count("weights are bitwise equal on all 2 rank(s)") == 2
    assert "Failed" not in err
