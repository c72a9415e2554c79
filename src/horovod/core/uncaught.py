"""Uncaught errors of the program: recorded, and in one line if they only follow from another rank.

The rank that ended first has the error that matters; tracebacks of all others would hide it. The
traceback of an error that Horovod raised on purpose ends at the line of the program.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from horovod.core.port import take_failure
from horovod.errors import HorovodInternalError, InitError, PeerLostError, SettingError
from horovod.settings import Settings
from horovod.trace.failures import description_of, place_text
from horovod.trace.stacks import Call, own_call

_FRAMEWORKS = ("jax", "jaxlib", "mxnet", "tensorflow")
# For errors that have no text.
_ADVICE = {
    "bdb.BdbQuit": "a debugger without a terminal; horovodrun --debug-rank N gives it this one"
}
_WITH_TRACEBACKS = ("trace", "debug")  # log levels


def install_hook(record: Callable[[str], object]) -> None:
    """Replace Python's hook for uncaught errors.

    Those of a lost peer are shown in one line, other errors of Horovod without its own calls, or
    with ``HOROVOD_LOG_LEVEL=debug`` as all others are. ``record`` gets the others that are not of
    Horovod, as ``trace.failures`` describes them.
    """
    show_all = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        lost = _lost_peer(error)
        is_short = _log_level() not in _WITH_TRACEBACKS
        if lost is not None and is_short:
            print(lost_peer_line(lost, trace), file=sys.stderr, flush=True)
            return
        if is_short and _is_own(error) and show_all is sys.__excepthook__:
            traceback.print_exception(kind, error, trace, limit=_program_calls(trace))
        else:
            show_all(kind, error, trace)
        if lost is None and isinstance(error, Exception) and not _is_own(error):
            # Without a recorder or a folder for it nothing is written.
            with suppress(OSError, RuntimeError, ValueError):
                record(_description(error, trace))

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


def _is_own(error: BaseException) -> bool:
    return isinstance(error, HorovodInternalError | InitError | SettingError)


def _log_level() -> str:
    try:
        return Settings.from_env(os.environ).log_level
    except SettingError:  # perhaps the error to show
        return Settings().log_level


def _program_calls(trace: TracebackType | None) -> int | None:
    """How many calls there are down to the innermost one of the program; None without one."""
    frames = traceback.extract_tb(trace)
    own = [Call(f.filename, f.lineno or 0, f.name).is_of_program for f in frames]
    return max((number for number, is_own in enumerate(own, 1) if is_own), default=None)


def _description(error: Exception, trace: TracebackType | None) -> str:
    kind = type(error)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    name = f"{module}{kind.__qualname__}"
    return description_of(name, str(error) or _ADVICE.get(name, ""), _call(trace))


def lost_peer_line(error: PeerLostError, trace: TracebackType | None) -> str:
    """Type, text, and the line of the program, as at the end of a traceback."""
    call = _call(trace)
    where = "" if call is None else f" ({place_text(call.path, call.line)})"
    return f"{type(error).__module__}.{type(error).__qualname__}: {error}{where}"


def _call(trace: TracebackType | None) -> Call | None:
    """The innermost call of the program itself."""
    frames = traceback.extract_tb(trace)
    return own_call([Call(f.filename, f.lineno or 0, f.name) for f in reversed(frames)])
