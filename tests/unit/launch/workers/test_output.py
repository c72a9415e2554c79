"""Prefixes, line borders, slow and broken consoles."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import select
import selectors
import struct
import termios
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.launch.workers import output, prefixes
from horovod.launch.workers.logs import LogFile
from horovod.launch.workers.output import Console, Lines, Output, consoles
from horovod.launch.workers.prefixes import LinePrefixer, full_prefix, short_prefix, timestamped

PREFIX = b"[3]<stdout>:"


def prefixed(*chunks: bytes) -> bytes:
    prefixer = LinePrefixer(lambda: PREFIX)
    return b"".join([prefixer.feed(chunk) for chunk in chunks]) + prefixer.finish()


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ((b"a\n",), PREFIX + b"a\n"),
        ((b"a\nb\n",), PREFIX + b"a\n" + PREFIX + b"b\n"),
        ((b"a", b"b", b"\n"), PREFIX + b"ab\n"),
        ((b"end",), PREFIX + b"end\n"),
        ((b"\n\n",), PREFIX + b"\n" + PREFIX + b"\n"),
        ((b"10%\r20%\r",), PREFIX + b"10%\r" + PREFIX + b"20%\r"),
        ((b"a\r\nb\r\n",), PREFIX + b"a\r\n" + PREFIX + b"b\r\n"),
        ((b"a\r", b"\nb\n"), PREFIX + b"a\r\n" + PREFIX + b"b\n"),
        ((b"a\r", b"\n", b"\n"), PREFIX + b"a\r\n" + PREFIX + b"\n"),
        ((b"\xff\xfe\0\n",), PREFIX + b"\xff\xfe\0\n"),
        ((b"\x0b\x0c\x1c\x85\n",), PREFIX + b"\x0b\x0c\x1c\x85\n"),
        ((), b""),
        ((b"",), b""),
    ],
)
def test_prefixes(chunks: tuple[bytes, ...], expected: bytes) -> None:
    assert prefixed(*chunks) == expected


@given(data=st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"\xff"])), cut=st.data())
def test_where_the_stream_is_cut_does_not_matter(data: list[bytes], cut: st.DataObject) -> None:
    stream = b"".join(data)
    border = cut.draw(st.integers(0, len(stream)))
    assert prefixed(stream[:border], stream[border:]) == prefixed(stream)
    bare = prefixed(*(stream[i : i + 1] for i in range(len(stream)))).replace(PREFIX, b"")
    assert bare in (stream, stream + b"\n")


def test_a_line_without_end_is_broken_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefixes, "_MAX_LINE_BYTES", 10)
    prefixer = LinePrefixer(lambda: PREFIX)
    assert prefixer.feed(b"x" * 9) == b""
    assert prefixer.feed(b"y") == PREFIX + b"x" * 9 + b"y\n"
    assert prefixer.finish() == b""


def test_a_prefix_may_change_from_one_feed_to_the_next() -> None:
    numbers = itertools.count(1)
    prefixer = LinePrefixer(lambda: b"%d:" % next(numbers))
    assert prefixer.feed(b"a\nb\nc") == b"1:a\n1:b\n"
    assert prefixer.finish() == b"2:c\n"


def test_a_time_before_the_prefix() -> None:
    assert re.fullmatch(
        rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[3\]<stdout>:", timestamped(PREFIX)
    )


def test_prefixes_on_terminals_and_elsewhere() -> None:
    assert full_prefix(3, "stderr") == "[3]<stderr>:"
    assert short_prefix(3, "stdout", {"NO_COLOR": "1"}) == "[3] "
    assert short_prefix(3, "stderr", {"NO_COLOR": "1"}) == "[3]! "
    assert short_prefix(3, "stderr", {"TERM": "dumb"}) == "[3]! "
    assert short_prefix(3, "stdout", {}) == "\x1b[36m[3]\x1b[m "
    assert len({short_prefix(rank, "stdout", {}) for rank in range(100)}) == 100


def test_a_log_has_its_own_prefix(desk: Desk, tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    lines = Lines(lambda: "short ", desk.console, log, log_prefix=lambda: "full:")
    lines.feed(b"one\ntw")
    lines.feed(b"o\nrest")
    lines.close()
    desk.console.flush()
    assert desk.read() == b"short one\nshort two\nshort rest\n"
    assert (tmp_path / "log").read_bytes() == b"full:one\nfull:two\nfull:rest\n"


class Terminal:
    """A terminal that two workers write to, at times that the test chooses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(output.time, "monotonic", lambda: self.now)
        self.now = 0.0
        self.screen, self.fd = os.openpty()
        tty.setraw(self.fd)
        self.console = Console(self.fd, selectors.DefaultSelector())
        self.workers = [Lines(lambda: "0:", self.console), Lines(lambda: "1:", self.console)]

    def shown(self, after_s: float = 0.0) -> bytes:
        """What is new on the screen after a while."""
        self.now += after_s
        self.console.show_begun()
        self.console.flush()
        ready, _, _ = select.select([self.screen], [], [], 0)
        return os.read(self.screen, 1000) if ready else b""


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    made = Terminal(monkeypatch)
    yield made
    os.close(made.screen)
    os.close(made.fd)


def test_a_prompt_appears_on_a_terminal_and_its_line_goes_on(terminal: Terminal) -> None:
    worker, _ = terminal.workers
    worker.feed(b"one\nname")
    assert terminal.shown() == b"0:one\n"
    assert terminal.console.deadline == pytest.approx(0.2)
    assert terminal.shown(0.3) == b"0:name"
    assert terminal.console.deadline is None
    worker.feed(b"? ")
    assert terminal.shown(0.3) == b"? "
    worker.feed(b"thanks\nnext\n")
    assert terminal.shown() == b"thanks\n0:next\n"
    worker.feed(b"end")
    assert terminal.shown(0.3) == b"0:end"
    worker.close()
    assert terminal.shown() == b"\n"


def test_a_line_of_another_worker_ends_a_begun_one(terminal: Terminal) -> None:
    asking, other = terminal.workers
    asking.feed(b"name? ")
    assert terminal.shown(0.3) == b"0:name? "
    other.feed(b"loss 1\n")
    assert terminal.shown() == b"\n1:loss 1\n"
    asking.feed(b"thanks\n")
    assert terminal.shown(0.3) == b"0:name? thanks\n"
    terminal.console.write(b"horovodrun: done\n")
    assert terminal.shown() == b"horovodrun: done\n"


@pytest.mark.parametrize(
    ("columns", "shown"),
    [(80, "2 ranks, 4 s, step 8"), (20, "2 ranks, 4 s"), (14, "2 ranks, 4 s"), (5, "2 ra")],
)
def test_a_status_is_as_much_as_fits(terminal: Terminal, columns: int, shown: str) -> None:
    fcntl.ioctl(terminal.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    terminal.console.show_status("2 ranks, 4 s, step 8")
    assert terminal.shown() == f"\x1b[2m{shown}\x1b[m".encode()


def test_begun_lines_wait_for_their_end_where_no_terminal_is(desk: Desk) -> None:
    os.write(desk.worker, b"name? ")
    desk.turn()
    assert desk.console.deadline is None


class Desk:
    """A console and a worker's pipe, both in the hands of the test."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.screen, screen_write = os.pipe()
        self.console_fd = screen_write
        self.console = Console(screen_write, self.selector)
        worker_read, self.worker = os.pipe()
        self.output = Output(self.selector)
        self.output.add(worker_read, "[0]<stdout>:", self.console)
        os.set_blocking(self.screen, False)
        os.set_blocking(self.worker, False)

    def turn(self) -> bool:
        """Handle what is due; whether there was anything."""
        events = self.selector.select(0)
        for key, _ in events:
            key.data()
        self.output.balance()
        return bool(events)

    def read(self) -> bytes:
        try:
            return os.read(self.screen, 1 << 20)
        except BlockingIOError:
            return b""


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.selector.close()
    for fd in (made.screen, made.console_fd, made.worker):
        if fd >= 0:
            os.close(fd)


def test_a_stuck_console_stops_the_reading_and_loses_nothing(desk: Desk) -> None:
    line = b"x" * 999 + b"\n"
    sent = 0
    # No process reads the screen: pipe, then console, then pipe fill up and the worker would wait.
    while True:
        try:
            sent += os.write(desk.worker, line) // len(line)
        except BlockingIOError:
            if not desk.turn():
                break
    assert sent > 1000
    assert desk.console.waiting_bytes < 2 * output._HIGH_WATER_BYTES
    os.close(desk.worker)
    desk.worker = -1
    received = b""
    while desk.turn() or desk.output._pipes:
        received += desk.read()
    received += desk.read()
    assert received == (b"[0]<stdout>:" + line) * sent


def test_a_closed_console_is_noticed(desk: Desk) -> None:
    os.close(desk.screen)
    desk.screen = -1
    os.write(desk.worker, b"line\n")
    while not desk.console.is_broken:
        assert desk.turn()
    desk.console.write(b"no error")
    assert desk.console.problem == "the reader of the output has closed it"


def test_a_full_disk_is_no_reader_that_has_gone() -> None:
    with open("/dev/full", "wb") as full:
        console = Console(full.fileno(), selectors.DefaultSelector())
        console.write(b"line\n")
        console.flush()
    assert console.is_broken
    assert console.problem == "the output cannot be written: No space left on device"


def test_drain_takes_what_is_there_and_waits_for_nobody(desk: Desk) -> None:
    os.write(desk.worker, b"one\ntwo\nthree")  # and this end stays open
    desk.output.drain()
    desk.console.flush()
    assert desk.read() == b"[0]<stdout>:one\n[0]<stdout>:two\n[0]<stdout>:three\n"
    with pytest.raises(BrokenPipeError):
        os.write(desk.worker, b"x")


def test_news_of_a_pipe_that_was_closed_in_the_same_turn(desk: Desk) -> None:
    os.write(desk.worker, b"one\n")
    events = desk.selector.select(0)
    assert events
    desk.output.drain()
    number = os.open(os.devnull, os.O_RDONLY)  # mostly the number that has become free
    try:
        for key, _ in events:
            key.data()
    finally:
        os.close(number)
    desk.console.flush()
    assert desk.read() == b"[0]<stdout>:one\n"


def test_regular_files_are_written_at_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("out") / "file"
    with selectors.DefaultSelector() as selector, path.open("wb") as file:
        console = Console(file.fileno(), selector)
        console.write(b"x" * 100_000)
        assert console.waiting_bytes == 0
    assert path.read_bytes() == b"x" * 100_000


def test_one_place_is_one_console() -> None:
    with selectors.DefaultSelector() as selector:
        saved = os.dup(2)
        try:
            os.dup2(1, 2)
            stdout, stderr = consoles(selector)
            assert stdout is stderr
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def test_a_log_has_the_same_lines_as_the_console(desk: Desk, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    log = LogFile(tmp_path / "stdout")
    desk.output.add(reader, "[1]<stdout>:", desk.console, log)
    os.write(writer, b"one\ntwo\nthr")
    os.close(writer)
    while desk.turn():
        pass
    assert (
        tmp_path / "stdout"
    ).read_bytes() == b"[1]<stdout>:one\n[1]<stdout>:two\n[1]<stdout>:thr\n"
    assert (tmp_path / "stdout").read_bytes() == desk.read()
    assert log.problem == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_costs_the_log_and_nothing_else(desk: Desk, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    log = LogFile(tmp_path / "stdout")
    with log._file:
        log._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    desk.output.add(reader, "[1]<stdout>:", desk.console, log)
    os.write(writer, b"one\n")
    while desk.turn():
        pass
    os.write(writer, b"two\n")
    os.close(writer)
    while desk.turn():
        pass
    assert desk.read() == b"[1]<stdout>:one\n[1]<stdout>:two\n"
    assert log.problem == "No space left on device"
