"""A host's workers as the launcher sees them; its agent is a shell that says what a test wants."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from loopback import new_loopback

from horovod.launch.jobs.fixed import RemoteHosts, ranks_of
from horovod.launch.model.host_plan import HostPlan, WorkerSpec
from horovod.launch.model.hosts import HostSlots, assign_ranks
from horovod.launch.model.job_plan import EmbeddedAgentAddress
from horovod.launch.remote import remote_group as remote_group_module
from horovod.launch.remote.remote_group import RemoteWorkerGroup
from horovod.launch.wire.frames import MAGIC, FrameReader, Kind, encode, encode_json
from horovod.launch.wire.handshake import PROTOCOL, AgentHandshake, ProtocolError
from horovod.launch.workers.output import Console, Lines, Output, Sink
from horovod.launch.workers.processes import Watchdog
from horovod.launch.workers.worker_group import Trouble, Worker, WorkerGroup

SLOTS = assign_ranks([HostSlots("here", 1), HostSlots("there", 2)], 3)[1:]
HELLO_FIELDS = {"launcher_address": "192.0.2.1", "workers": [], "dropped_lines": 0}
HELLO = MAGIC + encode_json(Kind.HELLO, HELLO_FIELDS)
PLAN = HostPlan(
    hostname="there",
    argv=("true",),
    environment={},
    stores=(("127.0.0.1", 1),),
    secret=b"s",
)
PLACES = tuple(WorkerSpec(slot.rank, slot, {}) for slot in SLOTS)


class Desk:
    """All that a group needs, and a diary of its events."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.diary: list[str] = []
        self.selector = selectors.DefaultSelector()
        self.watchdog = Watchdog()
        self.shown = (folder / "shown").open("w+b", buffering=0)
        self.console = Console(self.shown.fileno(), self.selector)
        self.output = Output(self.selector)
        self.group: RemoteWorkerGroup | None = None

    def connected(self, group: RemoteWorkerGroup) -> None:
        self.diary.append(f"greeted {group.hostname}")

    def started(self, worker: Worker) -> None:
        self.diary.append(f"started {worker.name}")

    def ended(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            self.diary.append(f"ended {worker.name} with {worker.exit_code}")

    def troubled(self, group: WorkerGroup, trouble: Trouble) -> None:
        self.diary.append(f"troubled {trouble}")

    def refused(self, group: RemoteWorkerGroup) -> None:
        self.diary.append("refused")

    def lost(self, group: RemoteWorkerGroup) -> None:
        self.diary.append(f"lost: {group.problem}")

    def sinks(self, worker: Worker) -> tuple[Sink, Sink]:
        return (
            Lines(lambda: f"{worker.rank_info.rank}.out:", self.console),
            Lines(lambda: f"{worker.rank_info.rank}.err:", self.console),
        )

    def group_that_says(self, data: bytes, then: str = "cat >/dev/null") -> RemoteWorkerGroup:
        (self.folder / "said").write_bytes(data)
        self.group = RemoteWorkerGroup(
            "there",
            ["sh", "-c", f"cat '{self.folder}/said'; {then}"],
            selector=self.selector,
            watchdog=self.watchdog,
            consoles=(self.console, self.console),
            sinks=self.sinks,
            call=None,
            listener=self,
        )
        self.group.connect(os.environ)
        return self.group

    def group_at(self, agent: EmbeddedAgentAddress) -> RemoteWorkerGroup:
        return RemoteWorkerGroup(
            "there",
            agent,
            selector=self.selector,
            watchdog=self.watchdog,
            consoles=(self.console, self.console),
            sinks=self.sinks,
            call=None,
            listener=self,
        )

    def started_group_that_says(
        self, data: bytes, then: str = "cat >/dev/null"
    ) -> RemoteWorkerGroup:
        group = self.group_that_says(data, then)
        group.prepare(PLAN)
        for spec in PLACES:
            group.start_worker(spec)
        return group

    def turn_until(self, text: str) -> None:
        """Let things happen until the diary has an entry that begins with ``text``."""
        deadline = time.monotonic() + 30
        while not any(entry.startswith(text) for entry in self.diary):
            assert time.monotonic() < deadline, self.diary
            self.turn()

    def turn(self) -> None:
        for key, _ in self.selector.select(0.05):
            key.data()
        assert self.group is not None
        self.group.balance()
        if self.group.child.pid and self.group.child.is_running:
            pid, status = os.waitpid(self.group.child.pid, os.WNOHANG)
            if pid:
                assert self.group.note_exit(pid, os.waitstatus_to_exitcode(status))

    def close(self) -> None:
        if self.group is not None:
            self.group.child.close(time.monotonic() + 10)
        self.watchdog.close()
        self.selector.close()
        self.shown.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def test_a_host_from_greeting_to_end(desk: Desk) -> None:
    said = b"".join(
        (
            b"Welcome!\n",
            HELLO,
            encode(Kind.STARTED, 101, worker=1),
            encode(Kind.STARTED, 102, worker=2),
            encode(Kind.OUTPUT, b"half a li", worker=2, stream=1),
            encode(Kind.OUTPUT, b"ne\nrest", worker=2, stream=1),
            encode(Kind.EXITED, -9, worker=2),
            encode(Kind.EXITED, 0, worker=1),
            encode(Kind.CLOSED, worker=2, stream=1),
            encode(Kind.GONE),
        )
    )
    group = desk.started_group_that_says(said)
    group.end(reaches_strays=False)
    desk.turn_until("ended rank 1")
    while not group.is_gone:
        desk.turn_until("greeted")
    assert desk.diary == [
        "greeted there",
        "started rank 1 on there (pid 101)",
        "started rank 2 on there (pid 102)",
        "ended rank 2 on there (pid 102) with -9",
        "ended rank 1 on there (pid 101) with 0",
    ]
    assert group.is_started
    assert group.launcher_address == "192.0.2.1"
    assert (desk.folder / "shown").read_bytes() == b"2.err:half a line\n2.err:rest\n"
    group.child.close(time.monotonic() + 10)
    assert "lost" not in "".join(desk.diary)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (HELLO + b"\xff" * 10, "a frame of kind 255"),
        (HELLO + encode(Kind.OUTPUT, b"x", worker=0), "sent what no agent of this version sends"),
        (HELLO + encode(Kind.OUTPUT, b"x", worker=1, stream=2), "sent what no agent"),
        (HELLO + encode(Kind.STARTED, 1, worker=7), "sent what no agent"),
        (HELLO + encode(Kind.TROUBLE, b"{}"), "sent what no agent"),
        (MAGIC + encode(Kind.HELLO, b"[1]"), "message 'HELLO' has [1] in field text"),
        (b"x" * 1024 * 1024 + b"yy", "1048578 bytes of something else"),
    ],
)
def test_what_no_agent_says_ends_the_connection(data: bytes, text: str, desk: Desk) -> None:
    group = desk.started_group_that_says(data)
    desk.turn_until("lost")
    assert text in group.problem
    assert group.is_gone
    assert desk.diary[-1].startswith("lost")
    assert sum(entry.startswith("lost") for entry in desk.diary) == 1


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_group_module, "_PAUSE_S", 0.0)


@pytest.mark.usefixtures("impatience")
def test_an_ssh_server_that_is_about_to_start(desk: Desk) -> None:
    count = f"echo x >> '{desk.folder}/count'; test $(wc -l < '{desk.folder}/count') -gt 3"
    (desk.folder / "hello").write_bytes(HELLO)
    desk.group_that_says(
        b"", f"{count} || {{ echo refused >&2; exit 255; }}; cat '{desk.folder}/hello' -"
    )
    desk.turn_until("greeted")
    assert desk.diary == ["refused"] * 3 + ["greeted there"]


@pytest.mark.usefixtures("impatience")
@pytest.mark.parametrize(
    ("text", "attempts"), [("Connection refused", 5), ("Permission denied (publickey).", 1)]
)
def test_an_ssh_server_that_refuses_for_good(text: str, attempts: int, desk: Desk) -> None:
    group = desk.group_that_says(b"", f"echo '{text}' >&2; exit 255")
    desk.turn_until("lost")
    assert desk.diary == ["refused"] * (attempts - 1) + ["lost: sh exited with code 255"]
    assert group.last_lines == text
    assert group.deadline is None


def test_a_pause_that_is_not_over_when_the_job_ends(desk: Desk) -> None:
    group = desk.group_that_says(b"", "echo 'bad name' >&2; exit 255")
    desk.turn_until("refused")
    fleet = RemoteHosts([group], start_timeout_s=7)
    assert group.deadline is not None
    assert not fleet.has_answered
    assert "  there: sh exited with code 255" in fleet.delays()
    assert "    | bad name" in fleet.delays()
    group.end(reaches_strays=True)
    group.balance()
    assert (group.is_gone, group.deadline) == (True, None)


def test_an_agent_that_somebody_there_has_ended(desk: Desk) -> None:
    desk.started_group_that_says(HELLO + encode(Kind.GONE))
    desk.turn_until("lost")
    assert desk.diary == ["greeted there", "lost: its agent has ended"]


def test_an_agent_that_dies(desk: Desk) -> None:
    said = (
        HELLO + encode(Kind.STARTED, 101, worker=1) + encode(Kind.OUTPUT, b"last words", worker=1)
    )
    group = desk.started_group_that_says(said, "echo 'Traceback: bad luck' >&2; exit 3")
    desk.turn_until("lost")
    assert desk.diary[-1] == "lost: sh exited with code 3"
    assert group.last_lines == "Traceback: bad luck"
    assert (group.living, group.late()) == (0, [])
    assert (desk.folder / "shown").read_bytes() == b"1.out:last words\n"


def test_orders_to_a_host_that_is_lost_go_nowhere(desk: Desk) -> None:
    group = desk.group_that_says(HELLO, "exit 0")
    desk.turn_until("lost")
    group.prepare(PLAN)
    for spec in PLACES:
        group.start_worker(spec)
    group.end_worker(1)
    group.kill_worker(1)
    group.end(reaches_strays=True)
    group.kill()
    group.balance()


def test_a_host_without_workers_ends_at_once(desk: Desk) -> None:
    group = desk.group_that_says(b"", "exec sleep 1000")
    group.end(reaches_strays=True)
    assert group.is_gone
    group.child.close(time.monotonic() + 10)
    assert not group.child.is_running
    assert desk.diary == []


def test_a_host_that_answers_and_then_does_nothing_is_late(desk: Desk) -> None:
    group = desk.group_that_says(HELLO)
    fleet = RemoteHosts([group], start_timeout_s=7)
    desk.turn_until("greeted")
    group.prepare(PLAN)
    for spec in PLACES:
        group.start_worker(spec)
    assert fleet.has_answered
    assert fleet.failures() == ""
    assert fleet.seen_addresses() == {"there": "192.0.2.1"}
    assert "some hosts do not start within 7 s (--start-timeout):" in fleet.delays()
    assert "  there: has not started its workers" in fleet.delays()
    assert ranks_of(group) == "ranks 1 to 2"


def read_orders(desk: Desk, most: int) -> list[tuple[Kind, int]]:
    """What the agent has been sent, once it has all of it."""
    while True:
        data = (desk.folder / "heard").read_bytes()
        frames = [(frame.kind, frame.worker) for frame in FrameReader().feed(data)]
        if len(frames) >= most:
            return frames
        desk.turn()


def test_orders_reach_single_workers_after_the_word_to_start(desk: Desk) -> None:
    (desk.folder / "heard").touch()
    group = desk.started_group_that_says(HELLO, f"exec cat > '{desk.folder}/heard'")
    group.end_worker(1)
    group.kill_worker(2)
    assert read_orders(desk, 5) == [
        (Kind.PLAN, 0),
        (Kind.START, 0),
        (Kind.START, 0),
        (Kind.END_WORKER, 1),
        (Kind.KILL_WORKER, 2),
    ]


def test_a_worker_is_forgotten_once_no_frame_is_about_it(desk: Desk) -> None:
    before = b"".join(
        (HELLO, encode(Kind.STARTED, 101, worker=1), encode(Kind.EXITED, 0, worker=1))
    )
    after = b"".join(
        (
            encode(Kind.OUTPUT, b"late\n", worker=1),
            encode(Kind.CLOSED, worker=1, stream=0),
            encode(Kind.CLOSED, worker=1, stream=1),
            encode(Kind.STARTED, 102, worker=2),
            encode(Kind.EXITED, 0, worker=2),
        )
    )
    (desk.folder / "after").write_bytes(after)
    os.mkfifo(desk.folder / "go")
    group = desk.started_group_that_says(
        before, f"read line < '{desk.folder}/go'; cat '{desk.folder}/after' -"
    )
    desk.turn_until("ended rank 1")
    group.forget(1)
    group.workers[1].rank_info = replace(group.workers[1].rank_info, rank=9)
    (desk.folder / "go").write_text("now\n")
    desk.turn_until("ended rank 2")
    assert list(group.workers) == [2]
    assert group.ranks == [2]
    assert (desk.folder / "shown").read_bytes() == b"9.out:late\n"
    group.forget(1)


def test_a_worker_that_cannot_be_started(desk: Desk) -> None:
    fields = {"status": 127, "text": "not found", "number": 1}
    group = desk.started_group_that_says(HELLO + encode_json(Kind.TROUBLE, fields))
    desk.turn_until("troubled")
    assert desk.diary[-1] == f"troubled {Trouble(127, 'not found', 1)}"
    assert (group.ranks, group.is_started) == ([2], False)


def test_a_host_is_dismissed_and_leaves_nothing(desk: Desk) -> None:
    gone = desk.folder / "gone"
    os.mkfifo(gone)
    group = desk.started_group_that_says(HELLO, f"cat '{gone}'; exec cat > /dev/null")
    desk.turn_until("greeted")
    group.dismiss()
    gone.write_bytes(encode(Kind.GONE))
    while not group.is_closed:
        desk.turn()
    assert desk.diary == ["greeted there"]
    assert not desk.selector.get_map()


def test_an_agent_that_does_not_say_gone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_group_module, "_MOST_END_S", 0.1)
    # Not one that ends by itself when its standard input does, just before the signal comes.
    group = desk.started_group_that_says(HELLO, "exec sleep 1000")
    desk.turn_until("greeted")
    group.dismiss()
    assert group.deadline is not None
    desk.turn_until("lost")
    assert desk.diary[-1] == "lost: sh was ended by SIGTERM"
    assert (group.is_closed, group.deadline) == (True, None)


def test_a_host_is_dismissed_before_it_has_answered(desk: Desk) -> None:
    group = desk.group_that_says(b"")
    group.dismiss()
    while not group.is_closed:
        desk.turn()
    assert desk.diary == []


def test_a_mistake_of_the_listener_is_not_the_agents(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(group: RemoteWorkerGroup) -> None:
        raise KeyError("mine")

    monkeypatch.setattr(desk, "connected", fail)
    desk.group_that_says(HELLO)
    with pytest.raises(KeyError, match="mine"):
        desk.turn_until("greeted")


class CuttingGuest:
    """Listens as an embedded agent, and resets the first connections at one of their messages."""

    def __init__(self, cuts: int, at_proof: bool) -> None:
        self.secret = b"s" * 32
        self._cuts = cuts
        self._at_proof = at_proof
        self._listener = socket.create_server((new_loopback(), 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def address(self) -> EmbeddedAgentAddress:
        return EmbeddedAgentAddress(*self._listener.getsockname(), self.secret)

    def _serve(self) -> None:
        with self._listener:
            for number in range(self._cuts + 1):
                with self._listener.accept()[0] as launcher:
                    self._greet(launcher, is_last=number == self._cuts)

    def _greet(self, launcher: socket.socket, *, is_last: bool) -> None:
        handshake = AgentHandshake(self.secret)
        if is_last or self._at_proof:
            launcher.sendall(handshake.opening)
            proof = handshake.feed(launcher.recv(4096))
            if is_last:
                launcher.sendall(proof + handshake.records().sealed(HELLO))
                launcher.recv(1)

    def __enter__(self) -> CuttingGuest:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)


@pytest.mark.usefixtures("impatience")
@pytest.mark.parametrize("at_proof", [False, True])
def test_a_guest_whose_connection_is_cut_is_connected_again(desk: Desk, at_proof: bool) -> None:
    with CuttingGuest(7, at_proof) as agent:
        desk.group = desk.group_at(agent.address)
        desk.group.connect({})
        desk.turn_until("greeted")
        assert desk.diary == ["refused"] * 7 + ["greeted there"]
        desk.group.child.abort()


@pytest.mark.usefixtures("impatience")
def test_a_guest_with_another_secret_is_believed(desk: Desk) -> None:
    with socket.create_server((new_loopback(), 0)) as listener:
        desk.group = desk.group_at(EmbeddedAgentAddress(*listener.getsockname(), b"t" * 32))
        desk.group.connect({})
        agent = AgentHandshake(b"s" * 32)
        with listener.accept()[0] as launcher:
            launcher.sendall(agent.opening)
            selector = selectors.DefaultSelector()
            selector.register(launcher, selectors.EVENT_READ)
            while not selector.select(0):
                desk.turn()
            selector.close()
            with pytest.raises(ProtocolError):
                agent.feed(launcher.recv(4096))
            launcher.sendall(PROTOCOL.refusal)
            desk.turn_until("lost")
    assert desk.diary == ["lost: it does not know the job's secret"]
