"""A deadline, and the error after it."""

from __future__ import annotations

import time

from horovod.errors import TimeoutException

__all__ = ["Timeout"]


class Timeout:
    """``timeout`` seconds from now; ``message`` may name ``{activity}`` and ``{timeout}``."""

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout_s = timeout
        self._until = time.monotonic() + timeout
        self._message = message

    def remaining(self) -> float:
        """The seconds that are left, at least 0."""
        return max(0.0, self._until - time.monotonic())

    def timed_out(self) -> bool:
        """Whether the time is over."""
        return self.remaining() == 0.0

    def check_time_out_for(self, activity: str) -> None:
        """Raise TimeoutException, with the message, if the time is over."""
        if self.timed_out():
            raise TimeoutException(self._message.format(activity=activity, timeout=self._timeout_s))
