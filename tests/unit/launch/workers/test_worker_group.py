"""The workers of this machine, which come and go by number."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from horovod.core.base.rank_info import RankInfo
from horovod.launch.model.host_plan import HostPlan, Rendezvous, WorkerSpec
from horovod.launch.workers import worker_group as crew_module
from horovod.launch.workers.output import Console, Lines, Output, Sink
from horovod.launch.workers.processes import Watchdog
from horovod.launch.workers.worker_group import LocalWorkerGroup, Trouble, Worker, WorkerGroup

SLOT = RankInfo(3, 4, 3, 4, 0, 1, "here")


class Desk:
    """A worker group; each worker runs its own line of shell."""

    def __init__(self, folder: Path) -> None:
        self.selector = selectors.DefaultSelector()
        self.watchdog = Watchdog()
        self.shown = (folder / "shown").open("w+b", buffering=0)
        self.console = Console(self.shown.fileno(), self.selector)
        self.output = Output(self.selector)
        self.started_workers: list[Worker] = []
        self.troubles: list[Trouble] = []
        self.group = LocalWorkerGroup(self.output, self.watchdog, sinks=self.sinks, listener=self)
        self.prepare("/bin/sh", "-c", 'eval "$LINE"')

    def prepare(self, *words: str) -> None:
        plan = HostPlan("here", words, dict(os.environ), stores=(), secret=b"s")
        self.group.prepare(plan, Rendezvous("127.0.0.1", 1, b"s"))

    def started(self, worker: Worker) -> None:
        self.started_workers.append(worker)

    def troubled(self, group: WorkerGroup, trouble: Trouble) -> None:
        self.troubles.append(trouble)

    def sinks(self, worker: Worker) -> tuple[Sink, Sink]:
        out = Lines(lambda: f"[{worker.rank_info.rank}]", self.console)
        return out, Lines(lambda: "error:", self.console)

    def start(self, number: int, line: str) -> Worker:
        """Returns once the worker has written its first line."""
        before = self.text()
        self.group.start_worker(WorkerSpec(number, SLOT, {"LINE": line}))
        self.turn_until(lambda: self.text() != before)
        return self.started_workers[-1]

    def text(self) -> str:
        return (Path(self.shown.name)).read_text()

    def turn_until(self, is_done: Callable[[], bool]) -> None:
        """Let things happen, as the loops of a launcher and of an agent do."""
        deadline = time.monotonic() + 30
        while not is_done():
            assert time.monotonic() < deadline
            for key, _ in self.selector.select(0.01):
                key.data()
            for worker in list(self.group.workers.values()):
                if worker.exit_code is None:
                    pid, status = os.waitpid(worker.pid, os.WNOHANG)
                    if pid:
                        self.group.note_exit(pid, os.waitstatus_to_exitcode(status))
            self.group.note_ended_groups()
            self.group.balance()

    def close(self) -> None:
        self.group.kill_groups()
        self.turn_until(lambda: self.group.is_gone)
        self.output.drain()
        self.watchdog.close()
        self.selector.close()
        self.shown.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def test_one_worker_is_ended_and_the_others_stay(desk: Desk) -> None:
    first = desk.start(7, "echo on; exec sleep 1000")
    second = desk.start(8, "echo on; exec sleep 1000")
    desk.group.end_worker(7)
    desk.turn_until(lambda: first.exit_code is not None)
    assert (first.exit_code, second.exit_code, desk.group.living) == (-signal.SIGTERM, None, 1)
    desk.group.kill_worker(8)
    desk.turn_until(lambda: desk.group.is_gone)
    assert second.exit_code == -signal.SIGKILL


def test_a_worker_that_does_not_want_to_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "GRACE_S", 0.1)
    worker = desk.start(0, "trap '' TERM; echo on; while :; do sleep 1000; done")
    assert desk.group.deadline is None
    desk.group.end_worker(0)
    assert desk.group.deadline is not None
    desk.turn_until(lambda: desk.group.is_gone)
    assert worker.exit_code == -signal.SIGKILL
    assert desk.group.deadline is None


def test_a_container_without_null_is_no_missing_command(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "devnull", str(tmp_path / "null"))
    desk.group.start_worker(WorkerSpec(5, SLOT, {}))
    text = f"cannot start rank 3 on here ({tmp_path / 'null'}): No such file or directory"
    assert desk.troubles == [Trouble(126, text, 5)]


def test_lines_follow_a_worker_to_its_next_rank(desk: Desk) -> None:
    worker = desk.start(0, "echo one; kill -STOP $$; echo two")
    worker.rank_info = replace(SLOT, rank=1)
    assert worker.name.startswith("rank 1 on here")
    desk.turn_until(lambda: os.waitpid(worker.pid, os.WUNTRACED | os.WNOHANG)[0] != 0)
    os.kill(worker.pid, signal.SIGCONT)
    desk.turn_until(lambda: "two" in desk.text())
    assert desk.text() == "[3]one\n[1]two\n"


def test_nothing_is_kept_for_workers_that_are_forgotten(desk: Desk) -> None:
    def round_of(number: int) -> int:
        desk.start(number, "echo on")
        desk.group.forget(number)
        desk.turn_until(lambda: not desk.group.workers)
        return len(os.listdir("/proc/self/fd"))

    before = round_of(0)
    assert [round_of(number) for number in range(1, 6)] == [before] * 5
    assert len(desk.selector.get_map()) == 0
    assert not vars(desk.group)["_groups"]


def test_to_forget_a_worker_ends_what_it_has_left_behind(desk: Desk) -> None:
    worker = desk.start(0, "sleep 1000 & echo on; exit 3")
    desk.turn_until(lambda: worker.exit_code is not None)
    assert desk.group.late() == [worker.name]
    desk.group.forget(0)
    desk.turn_until(lambda: not desk.group.workers)
    assert desk.group.late() == []


def test_a_living_worker_is_forgotten_later(desk: Desk) -> None:
    worker = desk.start(0, "echo on; kill -STOP $$")
    desk.group.forget(0)
    assert list(desk.group.workers) == [0]
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
    os.kill(worker.pid, signal.SIGCONT)
    desk.turn_until(lambda: not desk.group.workers)
    assert worker.exit_code == 0


def test_a_daemon_that_holds_the_output_keeps_nothing_open(desk: Desk, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "end")
    worker = desk.start(0, f"setsid sh -c 'echo on; read line < {tmp_path}/end; echo off' & ")
    desk.turn_until(lambda: worker.exit_code is not None)
    assert len(desk.selector.get_map()) == 2
    desk.group.forget(0)
    desk.turn_until(lambda: not desk.group.workers)
    assert len(desk.selector.get_map()) == 0
    (tmp_path / "end").write_text("now\n")
    assert desk.text() == "[3]on\n"


@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        (
            ("no-such-command",),
            Trouble(127, "command not found in PATH on here: no-such-command", 5),
        ),
        (
            ("pyhton",),
            Trouble(127, "command not found in PATH on here: pyhton; did you mean python?", 5),
        ),
        (("/no/such",), Trouble(127, "command not found on here: /no/such", 5)),
        (("/etc",), Trouble(126, "/etc: not executable on here: Permission denied", 5)),
    ],
)
def test_a_worker_that_cannot_be_started(
    words: tuple[str, ...],
    trouble: Trouble,
    desk: Desk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "python").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:/no/such/folder")
    desk.prepare(*words)
    desk.group.start_worker(WorkerSpec(5, SLOT, {}))
    assert desk.troubles == [trouble]
    assert not desk.group.workers
    desk.group.end_worker(5)
    desk.group.kill_worker(5)
    desk.group.forget(5)


@pytest.mark.parametrize(
    ("cores", "local_size", "given", "threads"),
    [
        (8, 2, None, "4"),
        (2, 4, None, "1"),
        (8, 1, None, "unset"),
        (8, 2, "3", "3"),
        (8, 2, "", "4"),
    ],
)
def test_a_worker_has_its_share_of_the_cores_unless_the_user_says_otherwise(
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    local_size: int,
    given: str | None,
    threads: str,
) -> None:
    monkeypatch.setattr(crew_module, "usable_cores", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    desk.prepare("/bin/sh", "-c", "echo ${OMP_NUM_THREADS-unset}")
    desk.group.start_worker(WorkerSpec(0, replace(SLOT, local_size=local_size), {}))
    desk.turn_until(lambda: "\n" in desk.text())
    assert desk.text() == f"[3]{threads}\n"
