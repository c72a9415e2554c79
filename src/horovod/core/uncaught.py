"""Uncaught errors of the program: a rank that has lost its peer says so in one line.

The rank that ended first has the error that matters; tracebacks of all others would hide it.
"""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType

from horovod.core.port import take_failure
from horovod.errors import PeerLostError
from horovod.settings import Settings
from horovod.trace.failures import place_text
from horovod.trace.stacks import Call, own_call

_FRAMEWORKS = ("jax", "jaxlib", "mxnet", "tensorflow")
_WITH_TRACEBACKS = ("trace", "debug")  # log levels


def shorten_lost_peers() -> None:
    """Replace Python's hook for uncaught errors; it still shows all other errors.

    With ``HOROVOD_LOG_LEVEL=debug`` it shows these, too.
    """
    show_all = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        level = Settings.from_env(os.environ).log_level
        lost = None if level in _WITH_TRACEBACKS else _lost_peer(error)
        if lost is None:
            show_all(kind, error, trace)
        else:
            print(lost_peer_line(lost, trace), file=sys.stderr, flush=True)

    sys.excepthook = show


def _lost_peer(error: BaseException) -> PeerLostError | None:
    """The lost peer that ``error`` is about, if it is about one."""
    if isinstance(error, PeerLostError):
        return error
    # Frameworks make errors of their own, and keep only the text.
    if type(error).__module__.partition(".")[0] in _FRAMEWORKS:
        failure = take_failure()
        return failure if isinstance(failure, PeerLostError) else None
    return None


def lost_peer_line(error: PeerLostError, trace: TracebackType | None) -> str:
    """Type, text, and the line of the program, as at the end of a traceback."""
    frames = traceback.extract_tb(trace)
    calls = [Call(frame.filename, frame.lineno or 0, frame.name) for frame in reversed(frames)]
    call = own_call(calls)
    where = "" if call is None else f" ({place_text(call.path, call.line)})"
    return f"{type(error).__module__}.{type(error).__qualname__}: {error}{where}"
