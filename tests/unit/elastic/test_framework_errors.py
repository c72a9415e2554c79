"""The engine's errors behind those that frameworks make of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from horovod.core import port
from horovod.elastic.retry import engine_errors
from horovod.errors import HorovodInternalError, MismatchError, PeerLostError


class FrameworkError(Exception):
    """Has the text of another, at most."""


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    yield
    port.take_failure()


def fail(error: Exception, kept: Exception | None = None) -> None:
    """As a framework does: ``error`` stands for ``kept``."""
    with engine_errors(FrameworkError):
        if kept is not None:
            port.keep_failure(kept)
        raise error


@pytest.mark.parametrize("failure", [PeerLostError("died", ranks=range(4, 44)), MismatchError("x")])
def test_the_error_of_the_engine_comes_in_its_place(failure: HorovodInternalError) -> None:
    error = FrameworkError("something went wrong")
    with pytest.raises(HorovodInternalError) as raised:
        fail(error, failure)
    assert raised.value is failure
    assert raised.value.__cause__ is error


def test_one_that_was_kept_before_is_found_once() -> None:
    # JAX raises the error of an operation when its result is waited for.
    port.keep_failure(PeerLostError("died"))
    with engine_errors(FrameworkError):
        pass
    with pytest.raises(PeerLostError):
        fail(FrameworkError())
    with pytest.raises(FrameworkError):
        fail(FrameworkError())


@pytest.mark.parametrize("kept", [None, ValueError("no such root")])
def test_other_errors_stay_as_they_are(kept: Exception | None) -> None:
    error = FrameworkError("HorovodInternalError (PeerLostError): only a text")
    with pytest.raises(FrameworkError) as raised:
        fail(error, kept)
    assert raised.value is error


@pytest.mark.parametrize("error", [KeyError("x"), PeerLostError("another")])
def test_errors_of_other_kinds_stay_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        fail(error, PeerLostError("died"))
    assert raised.value is error
