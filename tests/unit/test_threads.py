"""Threads that the system refuses."""

from __future__ import annotations

import errno
import threading

import pytest

from horovod.core.base import threads


def test_a_refused_thread_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="can't start new thread") as caught:
        threads.start(threading.Thread())
    assert caught.value.errno == errno.EAGAIN
