"""The port to the engine for plugins, and errors of which frameworks pass on the text only."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horovod import _native

_kept_failure: Exception | None = None


@cache
def port() -> _native.Port:
    """This process's port. It is never replaced: plugins of frameworks keep its address."""
    from horovod import _native

    return _native.Port()


def port_address() -> int:
    """Where native plugins of this build find the engine of the current world; never changes."""
    return port().address


def rethrow_interrupt() -> None:
    """For a plugin that gave up a wait: raise the exception of the signal handler that ended it."""
    port().rethrow()


def keep_failure(error: Exception) -> None:
    """Keep ``error``, because the framework that gets it passes on only its text."""
    global _kept_failure
    _kept_failure = error


def take_failure() -> Exception | None:
    """The last error in this world of which a framework got only the text, once; None if none."""
    global _kept_failure
    failure, _kept_failure = _kept_failure, None
    return port().take_failure() or failure


def forget_failure() -> None:
    """A new world begins: the errors of the last one do not belong to it."""
    global _kept_failure
    _kept_failure = None
