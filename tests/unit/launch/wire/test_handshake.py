"""The two sides of an embedded agent's handshake, fed with each other's bytes and with others."""

from __future__ import annotations

import pytest

from horovod.launch.wire.handshake import AgentHandshake, LauncherHandshake, ProtocolError

SECRET = bytes(range(32))


def test_both_sides_get_through_byte_by_byte() -> None:
    agent, launcher = AgentHandshake(SECRET), LauncherHandshake(SECRET)
    answer = b"".join(launcher.feed(bytes([byte])) for byte in agent.opening)
    proof = b"".join(agent.feed(bytes([byte])) for byte in answer)
    assert agent.is_over
    assert not launcher.is_over
    assert launcher.feed(proof + b"frames") == b""
    assert (launcher.is_over, launcher.rest) == (True, b"frames")


def test_a_secret_that_follows_is_hidden() -> None:
    agent, launcher = AgentHandshake(SECRET), LauncherHandshake(SECRET)
    launcher.feed(agent.feed(launcher.feed(agent.opening)))
    assert launcher.is_over
    job_secret = bytes(range(100, 132))
    sealed = launcher.sealed(job_secret)
    assert agent.sealed(sealed) == job_secret != sealed
    again, other = AgentHandshake(SECRET), LauncherHandshake(SECRET)
    other.feed(again.feed(other.feed(again.opening)))
    assert other.sealed(job_secret) != sealed


def test_a_launcher_that_does_not_know_the_secret() -> None:
    agent = AgentHandshake(SECRET)
    with pytest.raises(ProtocolError, match="does not know the job's secret"):
        agent.feed(LauncherHandshake(b"another").feed(agent.opening))
    assert not agent.is_over


def test_a_guest_that_does_not_know_the_secret() -> None:
    launcher = LauncherHandshake(SECRET)
    launcher.feed(AgentHandshake(b"another").opening)
    with pytest.raises(ProtocolError, match="does not know the job's secret"):
        launcher.feed(bytes(32))
    assert not launcher.is_over


def test_an_answer_that_was_heard_before_opens_no_other_guest() -> None:
    first, second = AgentHandshake(SECRET), AgentHandshake(SECRET)
    answer = LauncherHandshake(SECRET).feed(first.opening)
    with pytest.raises(ProtocolError):
        second.feed(answer)


def test_something_else_that_listens_there() -> None:
    with pytest.raises(ProtocolError, match="something else"):
        LauncherHandshake(SECRET).feed(b"SSH-2.0-OpenSSH_9.2\r\n")
