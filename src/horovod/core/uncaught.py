"""Uncaught errors of the program: a rank that has lost its peer says so in one line.

The rank that ended first has the error that matters; tracebacks of all others would hide it.
"""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType

from horovod.errors import PeerLostError
from horovod.settings import Settings
from horovod.trace.failures import place_text
from horovod.trace.stacks import Call, own_call

_WITH_TRACEBACKS = ("trace", "debug")  # log levels


def shorten_lost_peers() -> None:
    """Replace Python's hook for uncaught errors; it still shows all other errors.

    With ``HOROVOD_LOG_LEVEL=debug`` it shows these, too.
    """
    show_all = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        level = Settings.from_env(os.environ).log_level
        if isinstance(error, PeerLostError) and level not in _WITH_TRACEBACKS:
            print(lost_peer_line(error), file=sys.stderr, flush=True)
        else:
            show_all(kind, error, trace)

    sys.excepthook = show


def lost_peer_line(error: PeerLostError) -> str:
    """Type, text, and the line of the program, as at the end of a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    calls = [Call(frame.filename, frame.lineno or 0, frame.name) for frame in reversed(frames)]
    call = own_call(calls)
    where = "" if call is None else f" ({place_text(call.path, call.line)})"
    return f"{type(error).__module__}.{type(error).__qualname__}: {error}{where}"
