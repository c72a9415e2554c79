"""No signal and no call is lost on the way to the launcher's loop."""

from __future__ import annotations

import selectors
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from horovod.launch.workers.wakeups import Wakeups


class HandledError(Exception):
    """The handler of before has run."""


def handle(signum: int, frame: Any) -> None:
    raise HandledError


@pytest.fixture
def handlers() -> Iterator[None]:
    """None of the signals is ignored, as a shell's background job ignores some."""
    wanted = {signal.SIGINT: signal.SIG_DFL, signal.SIGTERM: handle, signal.SIGHUP: signal.SIG_DFL}
    before = {signum: signal.signal(signum, action) for signum, action in wanted.items()}
    yield
    for signum, action in before.items():
        signal.signal(signum, action)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("after", [signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_handlers_change_is_handled_or_told(
    monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    change = signal.signal

    def change_and_hit(signum: int, action: Any) -> Any:
        previous = change(signum, action)
        if signum == after:
            monkeypatch.undo()
            signal.raise_signal(signal.SIGTERM)  # in this thread, so at once
        return previous

    monkeypatch.setattr(signal, "signal", change_and_hit)
    if after in (signal.SIGCHLD, signal.SIGINT):
        with pytest.raises(HandledError), Wakeups():
            pass
    else:
        with Wakeups() as wakeups:
            assert wakeups.take() == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is handle
    assert signal.set_wakeup_fd(-1) == -1


def test_a_call_while_wakeups_are_read_is_done_or_wakes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two workers may speak at nearly the same time, and nothing else may come after them."""
    done: list[str] = []
    with Wakeups() as wakeups, selectors.DefaultSelector() as selector:
        selector.register(wakeups, selectors.EVENT_READ)
        reader = wakeups._reader

        class Reader:
            """Another thread calls just before each read."""

            def recv(self, size: int) -> bytes:
                if len(done) + len(wakeups._calls) < 2:
                    wakeups.call(lambda: done.append("second"))
                return reader.recv(size)

        wakeups.call(lambda: done.append("first"))
        with monkeypatch.context() as patch:
            patch.setattr(wakeups, "_reader", Reader())
            assert wakeups.take() == []
        while len(done) < 2:
            assert selector.select(0)
            wakeups.take()
    assert done == ["first", "second"]


@pytest.mark.usefixtures("handlers")
def test_signals_that_a_parent_has_blocked_come() -> None:
    """Else no end of a worker would be seen, and no Ctrl-C."""
    blocked = {signal.SIGTERM, signal.SIGUSR1}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        with Wakeups() as wakeups:
            signal.raise_signal(signal.SIGTERM)
            assert wakeups.take() == [signal.SIGTERM]
            assert signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before | blocked
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
