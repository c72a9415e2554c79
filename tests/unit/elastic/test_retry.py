"""run_fn: what is called in which order, and what ends the loop."""

from __future__ import annotations

import pickle

import cloudpickle
import pytest

from horovod.elastic import HostUpdate, State, notification_manager, run_fn
from horovod.errors import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    InitError,
    MismatchError,
    PeerLostError,
    ShutdownError,
    StallError,
)


class NotedState(State):
    """Notes what is done to it; ``failures`` are raised by the next syncs."""

    def __init__(self) -> None:
        super().__init__(lambda obj: obj, lambda: 0)
        self.notes: list[str] = []
        self.failures: list[Exception] = []

    def save(self) -> None:
        self.notes.append("save")

    def restore(self) -> None:
        self.notes.append("restore")

    def sync(self) -> None:
        self.notes.append("sync")
        if self.failures:
            raise self.failures.pop()

    def reset(self) -> None:
        self.notes.append("state.reset")


@pytest.fixture
def noted() -> NotedState:
    return NotedState()


def run(noted: NotedState, outcomes: list[object], reset=None):
    """Runs a function that returns or raises ``outcomes`` one after the other."""

    def train(state: State, word: str, *, end: str) -> object:
        noted.notes.append(word + end)
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return run_fn(train, reset or (lambda: noted.notes.append("reset")))(noted, "tra", end="in")


def test_returns_what_the_function_returns(noted):
    assert run(noted, ["done"]) == "done"
    assert noted.notes == ["sync", "train"]


@pytest.mark.parametrize("error", [HorovodInternalError, PeerLostError, StallError, ShutdownError])
def test_failure_restores_and_starts_again(noted, caplog, error):
    assert run(noted, [error("rank 1 died"), error("again"), 3]) == 3
    retry = ["restore", "reset", "state.reset", "sync", "train"]
    assert noted.notes == ["sync", "train", *retry, *retry]
    assert "rank 1 died" in caplog.text


def test_update_keeps_the_current_values(noted):
    run(noted, [HostsUpdatedInterrupt(), 0])
    assert noted.notes == ["sync", "train", "save", "reset", "state.reset", "sync", "train"]


def test_update_that_needs_no_sync(noted):
    run(noted, [HostsUpdatedInterrupt(skip_sync=True), HorovodInternalError("x"), 0])
    assert noted.notes == [
        *("sync", "train"),
        *("save", "reset", "state.reset", "train"),
        *("restore", "reset", "state.reset", "sync", "train"),
    ]


def test_a_peer_lost_during_sync_is_a_failure_too(noted):
    noted.failures = [PeerLostError("rank 1 died")]
    assert run(noted, [1]) == 1
    assert noted.notes == ["sync", "restore", "reset", "state.reset", "sync", "train"]


def test_a_peer_lost_in_a_callback_is_a_failure_too(noted):
    failures = [PeerLostError("rank 1 died")]

    def callback() -> None:
        if failures:
            raise failures.pop()

    noted.register_reset_callbacks([callback])
    assert run(noted, [HostsUpdatedInterrupt(skip_sync=True), 1]) == 1
    assert noted.notes[2:] == [
        *("save", "reset", "state.reset"),
        *("restore", "reset", "state.reset", "sync", "train"),
    ]


@pytest.mark.parametrize("error", [MismatchError("shapes"), KeyError("bug"), ValueError("bug")])
def test_bugs_are_not_retried(noted, error):
    with pytest.raises(type(error)) as caught:
        run(noted, [error])
    assert caught.value is error
    assert noted.notes == ["sync", "train"]


def test_a_world_that_cannot_be_made_ends_the_loop(noted):
    def reset() -> None:
        raise InitError("init: rank 1 of 2 is missing")

    with pytest.raises(InitError, match="rank 1 of 2 is missing"):
        run(noted, [HorovodInternalError("x")], reset)
    assert noted.notes == ["sync", "train", "restore"]


def test_updates_reach_the_state_while_it_runs(noted):
    def train(state: State) -> None:
        notification_manager.handle_hosts_updated(1, HostUpdate.ADDED)
        state.check_host_updates()
        noted.notes.append("no news")

    run_fn(train, lambda: noted.notes.append("reset"))(noted)
    assert noted.notes[-4:] == ["reset", "state.reset", "sync", "no news"]
    notification_manager.handle_hosts_updated(2, HostUpdate.ADDED)
    assert noted._host_messages.empty()


def test_wrapper_is_named_as_the_function():
    def train(state: State) -> None:
        """Trains."""

    wrapped = run_fn(train, lambda: None)
    assert (wrapped.__name__, wrapped.__doc__) == ("train", "Trains.")


def test_values_that_cannot_be_saved_are_those_of_the_last_commit(noted):
    class Owing(NotedState):
        def save(self) -> None:
            super().save()
            raise PeerLostError("rank 1 died")

    owing = Owing()
    assert run(owing, [HostsUpdatedInterrupt(skip_sync=True), "result"]) == "result"
    assert owing.notes[-6:] == ["save", "restore", "reset", "state.reset", "sync", "train"]


def test_a_function_of_a_script_travels_to_workers_with_what_makes_it_elastic() -> None:
    def train(state: State, addend: int) -> int:
        return addend + 1

    train.__module__ = "__main__"  # so that it is pickled by value
    state = NotedState()
    arrived = pickle.loads(cloudpickle.dumps(run_fn(train, print)))
    assert arrived(state, 4) == 5
    assert state.notes[-1] == "sync"


def test_a_call_without_a_state_is_refused() -> None:
    with pytest.raises(TypeError, match="must be an elastic State, found dict"):
        run_fn(lambda state: None, lambda: None)({})
