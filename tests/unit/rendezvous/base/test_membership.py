"""Failures of a bootstrap as messages."""

from __future__ import annotations

import json

import pytest
from worlds import SECRET

from horovod.errors import InitError
from horovod.rendezvous.base.handshake import Dialer, Listener
from horovod.rendezvous.base.membership import as_failure, failure_from_bytes, failure_to_bytes
from horovod.rendezvous.host import handshake


def test_a_failure_keeps_its_ranks() -> None:
    error = InitError("init: fürchterlich\n" + "x" * 10, ranks=range(3, 43), host="node-3")
    found = failure_from_bytes(failure_to_bytes(error), "rank 0")
    assert (str(found), found.ranks, found.host) == (str(error), tuple(range(3, 43)), "node-3")


def test_long_texts_are_cut_and_control_characters_escaped() -> None:
    assert len(str(failure_from_bytes(failure_to_bytes(InitError("x" * 10**6)), "rank 0"))) < 10**5
    assert str(failure_from_bytes(failure_to_bytes(InitError("\x1b[2J \udc80")), "rank 0")) == (
        "\\x1b[2J ?"
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ranks": [-1]}, "ranks"),
        ({"ranks": [2**24]}, "ranks"),
        ({"ranks": [True]}, "ranks"),
        ({"ranks": "3"}, "ranks"),
        ({"text": 3}, "text"),
        ({"host": "x" * 256}, "host"),
        ({"more": 1}, "more"),
    ],
)
def test_a_malformed_failure_names_its_sender(change: dict[str, object], field: str) -> None:
    value = json.dumps({"text": "", "ranks": [], "host": "", **change}).encode()
    error = failure_from_bytes(value, "rank 7")
    assert str(error).startswith("init: a message 'failure' from rank 7 has ")
    assert f" in field {field}; " in str(error)
    assert error.ranks == ()


def test_other_errors_are_those_of_the_rank() -> None:
    error = InitError("known", ranks=[1])
    assert as_failure(3, error) is error
    other = as_failure(3, KeyError("x"))
    assert (str(other), other.ranks) == ("init: rank 3 gave up: KeyError('x')", (3,))


def test_all_ranks_of_a_host_fit_into_one_message() -> None:
    root, peer = Listener(handshake.PROTOCOL, SECRET), Dialer(handshake.PROTOCOL, SECRET)
    root.read_hello(peer.hello(root.opening, handshake.Claims(1, 2, 1, 64).to_bytes()))
    error = InitError("\x1b" * 10**6, ranks=range(2**24 - 5000, 2**24), host="h" * 255)
    message = handshake.failed(root, error)
    assert len(message) <= handshake.MAX_MESSAGE_BYTES
    found = handshake.failure_in(message, peer, 0)
    assert found is not None
    assert len(found.ranks) == 4096
