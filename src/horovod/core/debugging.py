"""Debug mode in Python: an engine that remembers where each operation was submitted.

The C++ engine checks the tensors: see ``engine/runtime/debug_checks.h``.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from horovod import _native
from horovod.errors import MismatchError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_MOST_FRAMES = 8


class WatchedEngine(_native.Engine):
    """An engine whose mismatch errors end with the call stack of the submission.

    Operations that a framework's compiled code submits have none.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stacks: dict[int, str] = {}

    def run_tensor(self, *args: Any, **kwargs: Any) -> list[_native.Output]:
        try:
            return super().run_tensor(*args, **kwargs)
        except MismatchError as error:
            raise _with_stack(error, _stack_text()) from None

    def wait(self, handle: int) -> list[_native.Output]:
        try:
            return super().wait(handle)
        except MismatchError as error:
            raise _with_stack(error, self._stacks.get(handle, "")) from None
        finally:
            if not self.contains(handle):
                self._stacks.pop(handle, None)


def _remembering(name: str) -> Callable[..., int]:
    submit = getattr(_native.Engine, name)

    def call(self: WatchedEngine, *args: Any, **kwargs: Any) -> int:
        handle: int = submit(self, *args, **kwargs)
        self._stacks[handle] = _stack_text()
        return handle

    return call


for _kind in ("", "_many", "_group", "_tensor", "_tensors", "_tensor_group"):
    setattr(WatchedEngine, f"submit{_kind}", _remembering(f"submit{_kind}"))


def _with_stack(error: MismatchError, stack: str) -> MismatchError:
    text = f"{error}\nThis rank submitted it here:\n{stack}" if stack else str(error)
    return MismatchError(text, ranks=error.ranks, host=error.host, operation=error.operation)


def _stack_text() -> str:
    """The innermost frames of the program, without those of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and os.path.abspath(frame.f_code.co_filename).startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return ""
    stack = traceback.extract_stack(frame, limit=_MOST_FRAMES)
    return "".join(traceback.format_list(stack)).rstrip()
