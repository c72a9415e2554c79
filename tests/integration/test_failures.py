"""Real processes that are killed, stopped, interrupted, starved or leave, and the others' errors.

The scripts in ``workers/`` run under horovodrun and report through notes, small files in a
directory of the test. Times are from the machine's monotonic clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from launching import LAUNCHER, default_signals

WORKERS = Path(__file__).with_name("workers")
TIMEOUT_S = 500
# A lost rank is found in hundredths of a second. This limit is for a loaded machine, below every
# timeout that could end the wait instead.
DETECTION_S = 20.0
SHUTDOWN_S = 10  # longer than a rank of a loaded machine delays its peers


class Job:
    """Starts the jobs of one test and reads their notes."""

    def __init__(self, folder: Path) -> None:
        self.started: list[subprocess.Popen[str]] = []
        self.notes = folder / "notes"
        self.temporary = folder / "temporary"
        self.notes.mkdir()
        self.temporary.mkdir()
        self.environment = {
            **os.environ,
            "NOTES": str(self.notes),
            "TMPDIR": str(self.temporary),
            "HOROVOD_RECORDER_DIR": str(folder / "recordings"),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }

    def command(
        self, ranks: int, script: str, *arguments: str, python: Sequence[str] = ()
    ) -> list[str]:
        launcher = [*LAUNCHER, "-np", str(ranks)]
        return [*launcher, sys.executable, *python, str(WORKERS / script), *arguments]

    def start(
        self, command: Sequence[str], environment: dict[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.environment, **(environment or {})},
            preexec_fn=default_signals,
            **options,
        )
        self.started.append(process)
        return process

    def run(self, ranks: int, script: str, *arguments: str, **options: Any) -> tuple[int, str]:
        """Exit status and standard error of one job."""
        command = self.command(ranks, script, *arguments, python=options.pop("python", ()))
        with self.start(command, **options) as process:
            return self.finish(process)

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        try:
            _, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
        return process.returncode, err

    def read(self, name: str) -> Any:
        """The content of a note, as soon as it exists."""
        note = self.notes / name
        wait_until(lambda: note.exists() or all(job.poll() is not None for job in self.started))
        open_pipes = [job.stderr for job in self.started if job.stderr and not job.stderr.closed]
        assert note.exists(), [pipe.read() for pipe in open_pipes]
        return json.loads(note.read_text())

    def reports(self, ranks: int) -> list[dict[str, Any]]:
        return [self.read(f"report.{rank}") for rank in range(ranks)]

    def processes(self) -> list[psutil.Process]:
        """All processes of these jobs, with any parent."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("NOTES") == str(self.notes):
                    found.append(process)
        return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Nothing that the test started may remain."""
    shared_memory = set(os.listdir("/dev/shm"))
    job = Job(tmp_path)
    yield job
    remaining = psutil.wait_procs(job.processes(), timeout=60)[1]
    for process in remaining:
        process.kill()
    assert not remaining
    ours = [name for name in set(os.listdir("/dev/shm")) - shared_memory if "horovod" in name]
    assert not ours
    assert not list(job.temporary.glob("*horovod*"))


def assert_quiet(err: str) -> None:
    """No text that looks like a crash."""
    for sign in ("Traceback", "terminate called", "nanobind", "Fatal Python error", "Warning"):
        assert sign not in err, err


def assert_all_name_the_victim(job: Job, ranks: int, how: str) -> None:
    """Every pending or later call raised soon and named the last rank."""
    victim = f"rank {ranks - 1} (pid {job.read('victim')} on localhost) {how}"
    end = job.read("end")
    for rank, report in enumerate(job.reports(ranks - 1)):
        errors = report["pending"] + report["later"]
        if len(report["pending"]) == 32:  # some were done before
            errors = [error for error in errors if error is not None]
            assert report["pending"][-1] is not None
        assert None not in errors, report
        for error in errors:
            assert error["type"] == "PeerLostError"
            assert victim in error["text"]
        assert report["left"] == []
        detected_s = min(error["time"] for error in errors) - end
        print(f"rank {rank} of {ranks}: {1000 * detected_s:.1f} ms")
        assert detected_s < DETECTION_S


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("moment", ["collective", "awaited", "idle", "negotiation"])
def test_a_killed_rank_is_named_by_all_others(job: Job, moment: str, ranks: int) -> None:
    status, err = job.run(ranks, "lost_rank.py", moment, "kill")
    assert status == 1
    assert err.endswith(f"Process name: {ranks - 1}\nExit code: -9\n")
    assert_quiet(err)
    assert_all_name_the_victim(job, ranks, "died")


@pytest.mark.parametrize("moment", ["collective", "awaited", "idle"])
@pytest.mark.parametrize(
    ("way", "how", "code"),
    [
        ("os._exit", "died", 4),
        ("sys.exit", "has shut down", 3),
        ("exception", "has shut down", 1),
        ("return", "has shut down", 0),
    ],
)
def test_a_rank_that_ends_is_named_by_all_others(
    job: Job, way: str, how: str, code: int, moment: str
) -> None:
    status, err = job.run(3, "lost_rank.py", moment, way)
    assert status == (code != 0)
    assert f"Exit code: {code}" in err or code == 0
    assert err.count("Traceback") == (way == "exception"), err
    assert_all_name_the_victim(job, 3, how)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_whose_engine_does_not_start_is_named_while_its_process_lives(
    job: Job, ranks: int
) -> None:
    job.run(ranks, "failed_start.py")
    assert job.read("victim") == "no device"
    lost = f"PeerLostError ({ranks - 1},) allreduce 'needed': rank {ranks - 1} (pid "
    for report in job.reports(ranks - 1):
        assert report.startswith(lost)
        assert report.endswith("could not start: no device")


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_live_data_loaders_do_not_hide_a_death(job: Job, context: str) -> None:
    pytest.importorskip("torch")
    # A shell hides the failure, so the launcher does not end the loaders.
    script = f"{sys.executable} {WORKERS / 'data_loader.py'} {context}; true"
    with job.start([*LAUNCHER, "-np", "2", "sh", "-c", script]) as process:
        status, err = job.finish(process)
    assert status == 0, err
    assert "Traceback" not in err
    assert_all_name_the_victim(job, 2, "died")


def stopped(job: Job, shutdown_time: int) -> tuple[subprocess.Popen[str], int]:
    """A job whose last rank has stopped in the middle of a collective."""
    times = {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "0.5",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(shutdown_time),
    }
    process = job.start(job.command(3, "stopped_rank.py", "stop"), times)
    return process, job.read("stopped")


def test_a_stopped_rank_that_goes_on_loses_nothing(job: Job) -> None:
    process, pid = stopped(job, 0)
    with process:
        assert process.stderr is not None
        assert f"rank 2 (pid {pid} on localhost) has not moved for" in process.stderr.readline()
        os.kill(pid, signal.SIGCONT)
        status, _ = job.finish(process)
    assert status == 0
    for report in job.reports(3):
        assert report["errors"] == [None] * 32


def test_a_stopped_rank_is_an_error_after_the_shutdown_time(job: Job) -> None:
    process, pid = stopped(job, SHUTDOWN_S)
    with process:
        reports = job.reports(2)
        os.kill(pid, signal.SIGCONT)
        status, err = job.finish(process)
    assert status == 0
    text = f"rank 2 (pid {pid} on localhost) has not moved for {SHUTDOWN_S}."
    for report in [*reports, job.read("report.2")]:
        assert report["errors"][-1]["type"] == "StallError"
        assert text in report["errors"][-1]["text"]
        assert "in the middle of allreduce 'big" in report["errors"][-1]["text"]
    assert "has not moved for 0.5" in err


@pytest.mark.parametrize("check_time", [0.5, 60])
def test_a_rank_that_never_submits(job: Job, check_time: float) -> None:
    times = {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(check_time),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(SHUTDOWN_S),
    }
    status, err = job.run(3, "stopped_rank.py", "silence", environment=times)
    assert status == 0, err
    if check_time < SHUTDOWN_S:
        (warning,) = [line for line in err.splitlines() if "did not submit it" in line]
        assert "allreduce 'lonely' waits for ranks that did not submit it" in warning
        assert "Missing ranks: 2 (rank 2 (pid " in warning
    for report in job.reports(2):
        (error,) = report["errors"]
        assert error["type"] == "StallError"
        assert "allreduce 'lonely' waits" in error["text"]
        assert "Missing ranks: 2 (rank 2 (pid " in error["text"]
        assert SHUTDOWN_S - 0.1 < report["seconds"] < SHUTDOWN_S + DETECTION_S
    assert "'lonely'" in job.read("report.2")["errors"][0]["text"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGUSR1])
def test_an_interrupted_wait_can_be_taken_up_again(job: Job, signum: signal.Signals) -> None:
    with job.start(job.command(2, "interrupted.py", signum.name)) as process:
        for name in ("resumed", "forgotten"):
            pid = job.read(name)
            sent = time.monotonic()
            os.kill(pid, signum)
            interrupted_s = job.read(f"{name}.interrupted") - sent
            print(f"{name}: {1000 * interrupted_s:.0f} ms")
            assert interrupted_s < DETECTION_S
        status, err = job.finish(process)
    assert (status, err) == (0, "")


def test_ctrl_c_in_the_middle_of_collectives(job: Job) -> None:
    with job.start(job.command(4, "stopped_rank.py", "stop")) as process:
        job.read("stopped")
        process.send_signal(signal.SIGINT)
        status, err = job.finish(process)
    assert status == 130
    assert_quiet(err)


@pytest.mark.parametrize("state", ["pending", "under way", "daemons", "thread", "fork", "nothing"])
def test_the_interpreter_ends_in_any_state(job: Job, state: str) -> None:
    status, err = job.run(2, "ending.py", state)
    assert_quiet(err)
    assert (status, err) == (0, "")


def test_development_mode_with_warnings_as_errors(job: Job) -> None:
    options = ["-X", "dev", "-W", "error"]
    assert job.run(2, "ending.py", "nothing", python=options) == (0, "")
    command = [sys.executable, *options, "-c", "import horovod.numpy"]
    with job.start(command) as process:
        assert job.finish(process) == (0, "")


@pytest.mark.parametrize(
    ("ranks", "load"), [(8, "many"), (2, "small"), (4, "small"), (2, "large"), (3, "empty")]
)
def test_much_work(job: Job, ranks: int, load: str) -> None:
    if load == "large" and psutil.virtual_memory().available < 4 << 30:
        pytest.skip("needs 4 GiB of free memory")
    assert job.run(ranks, "load.py", load) == (0, "")


def test_eight_jobs_at_once(job: Job) -> None:
    with contextlib.ExitStack() as stack:
        jobs = [
            stack.enter_context(job.start(job.command(2, "load.py", "empty"))) for _ in range(8)
        ]
        assert [job.finish(process) for process in jobs] == [(0, "")] * 8


def test_init_refuses_what_it_cannot_use(job: Job) -> None:
    assert job.run(2, "bad_environment.py") == (0, "")


def test_few_descriptors(job: Job) -> None:
    command = job.command(4, "load.py", "empty")
    with job.start(["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *command]) as process:
        assert job.finish(process) == (0, "")


@pytest.mark.parametrize("options", ["ro", "size=4k"])
def test_no_room_for_files(job: Job, options: str, tmp_path: Path) -> None:
    """Shared memory, temporary folder and working directory are full or read-only."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    mount = f"mount -t tmpfs -o {options} none"
    script = (
        f"{mount} /dev/shm && {mount} {folder} && cd {folder} || exit 99\n"
        f"export TMPDIR={folder}\n"
        "for place in /dev/shm .; do cat /dev/zero > $place/full; done 2> /dev/null\n"
        'exec "$@"'
    )
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    command = job.command(2, "load.py", "empty")
    with job.start(["unshare", "--mount", "sh", "-c", script, "sh", *command]) as process:
        status, err = job.finish(process)
    if status == 99 or "unshare failed" in err:
        pytest.skip(f"may not mount here: {err.strip()}")
    assert (status, err) == (0, "")
