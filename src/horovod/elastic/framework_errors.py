"""Frameworks turn the engine's errors into errors of their own, which keep only the text.

No code reads that text: bindings keep the engine's error beside it (``port.keep_failure``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from horovod.core import port
from horovod.errors import HorovodInternalError


@contextmanager
def engine_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Raise the engine's own error in place of one of ``kinds`` that a framework made of it.

    Where no operation of this world has failed with a ``HorovodInternalError``, errors stay as they
    are.
    """
    try:
        yield
    except HorovodInternalError:
        raise
    except kinds as error:
        failure = port.take_failure()
        if not isinstance(failure, HorovodInternalError):
            raise
        raise failure from error
