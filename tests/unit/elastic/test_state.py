"""State and ObjectState without a world: saving, host updates, resets."""

from __future__ import annotations

import pytest

from horovod.common import elastic as common
from horovod.elastic import HostUpdate, NotificationManager, ObjectState, State, state
from horovod.errors import HostsUpdatedInterrupt


class RankZero:
    """A broadcast whose root sends what it is told, or what this rank gives."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.answer: object = None

    def __call__(self, obj: object) -> object:
        self.sent.append(obj)
        return obj if self.answer is None else self.answer


@pytest.fixture
def rank_zero() -> RankZero:
    return RankZero()


@pytest.fixture
def manager(monkeypatch) -> NotificationManager:
    """The manager of this process, for one test."""
    fresh = NotificationManager()
    monkeypatch.setattr(state, "notification_manager", fresh)
    return fresh


def make(rank_zero: RankZero, **values: object) -> ObjectState:
    return ObjectState(rank_zero, lambda: 0, **values)


def test_values_are_attributes_that_go_back(rank_zero):
    tracked = make(rank_zero, batch=1, epoch=2)
    tracked.batch, tracked.other = 5, "untracked"
    tracked.restore()
    assert (tracked.batch, tracked.epoch, tracked.other) == (1, 2, "untracked")
    tracked.batch = 6
    tracked.save()
    tracked.batch = 7
    tracked.restore()
    assert tracked.batch == 6
    assert rank_zero.sent == []


def test_sync_takes_what_rank_zero_saved(rank_zero):
    tracked = make(rank_zero, batch=1)
    tracked.batch = 5
    tracked.sync()
    assert rank_zero.sent == [{"batch": 1}]
    assert tracked.batch == 1
    rank_zero.answer = {"batch": 9}
    tracked.sync()
    assert tracked.batch == 9
    tracked.batch = 10
    tracked.restore()
    assert tracked.batch == 9


def test_sync_of_nothing_sends_nothing(rank_zero):
    make(rank_zero).sync()
    assert rank_zero.sent == []


@pytest.mark.usefixtures("manager")
def test_commit_saves_and_sends_nothing_without_a_source(rank_zero):
    tracked = make(rank_zero, batch=1)
    tracked.batch = 2
    tracked.commit()
    tracked.batch = 3
    tracked.restore()
    assert tracked.batch == 2
    assert rank_zero.sent == []


def test_check_is_collective_with_a_source(rank_zero, manager):
    manager.set_source(lambda _: None)
    make(rank_zero).check_host_updates()
    assert rank_zero.sent == [(0, 0)]


def test_an_update_reaches_listeners_once(rank_zero, manager):
    handlers = []
    manager.set_source(handlers.append)
    tracked = make(rank_zero)
    manager.init()
    manager.init()
    manager.register_listener(tracked)
    assert len(handlers) == 1
    handlers[0](3, HostUpdate.ADDED)
    with pytest.raises(HostsUpdatedInterrupt):
        tracked.commit()
    tracked.check_host_updates()
    manager.remove_listener(tracked)
    handlers[0](4, HostUpdate.ADDED)
    tracked.check_host_updates()
    assert rank_zero.sent == [(3, 2), (3, 0), (3, 0)]


def test_ranks_without_the_news_follow_rank_zero(rank_zero, manager):
    manager.set_source(lambda _: None)
    tracked = make(rank_zero)
    rank_zero.answer = (7, int(HostUpdate.REMOVED))
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        tracked.check_host_updates()
    assert caught.value.skip_sync
    rank_zero.answer = (7, 0)
    tracked.check_host_updates()
    assert tracked._last_updated_timestamp == 7


def test_a_newcomer_does_not_take_what_rank_zero_has_seen_for_news(rank_zero, manager):
    manager.set_source(lambda _: None)
    newcomer = make(rank_zero)
    rank_zero.answer = (7, 0)
    newcomer.check_host_updates()
    assert newcomer._last_updated_timestamp == 7


def test_what_rank_zero_has_seen_is_no_news(rank_zero, manager):
    manager.set_source(lambda _: None)
    tracked = make(rank_zero)
    for timestamp, sent in ((7, (7, 2)), (7, (7, 0)), (6, (7, 0)), (8, (8, 2))):
        tracked.on_hosts_updated(timestamp, HostUpdate.ADDED)
        if sent[1]:
            with pytest.raises(HostsUpdatedInterrupt):
                tracked.check_host_updates()
        else:
            tracked.check_host_updates()
        assert rank_zero.sent[-1] == sent


@pytest.mark.usefixtures("manager")
@pytest.mark.parametrize(
    ("updates", "skips"),
    [
        ([HostUpdate.REMOVED], True),
        ([HostUpdate.REMOVED, HostUpdate.REMOVED], True),
        ([HostUpdate.ADDED], False),
        ([HostUpdate.ADDED, HostUpdate.REMOVED], False),
        ([HostUpdate.MIXED], False),
    ],
)
def test_only_removals_need_no_sync(rank_zero, updates, skips):
    tracked = make(rank_zero)
    for timestamp, update in enumerate(updates, 1):
        tracked.on_hosts_updated(timestamp, update)
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        tracked.check_host_updates()
    assert caught.value.skip_sync is skips
    assert tracked._last_updated_timestamp == len(updates)


@pytest.mark.usefixtures("manager")
def test_reset_forgets_updates_then_calls_back_in_order(rank_zero):
    calls = []

    class Noted(ObjectState):
        def reset(self):
            assert self._host_messages.empty()
            calls.append("reset")

    tracked = Noted(rank_zero, lambda: 0)
    tracked.register_reset_callbacks([lambda: calls.append(1), lambda: calls.append(2)])
    tracked.register_reset_callbacks([lambda: calls.append(3)])
    tracked.on_hosts_updated(1, HostUpdate.ADDED)
    tracked.on_reset()
    assert calls == ["reset", 1, 2, 3]
    tracked.check_host_updates()
    assert rank_zero.sent == []


@pytest.mark.parametrize("method", ["save", "restore", "sync"])
def test_base_says_what_is_missing(rank_zero, method):
    class Half(State):
        pass

    with pytest.raises(NotImplementedError, match=rf"Half must define {method}\(\)"):
        getattr(Half(rank_zero, lambda: 0), method)()


def test_documented_path_gives_the_same_objects():
    assert common.State is State
    assert common.ObjectState is ObjectState
    assert common.notification_manager is state.notification_manager


class Patient:
    """A part server for whose clients training goes on."""

    def __init__(self) -> None:
        self.has_lagging = True

    def should_wait(self) -> bool:
        return self.has_lagging


def test_ranks_that_lack_a_change_join_later(monkeypatch) -> None:
    state = ObjectState(lambda obj: obj, lambda: 0, batch=0)
    server = Patient()
    monkeypatch.setattr(state, "_part_server", server)
    state.on_hosts_updated(1, HostUpdate.ADDED)
    state.check_host_updates()
    state.commit()
    server.has_lagging = False
    with pytest.raises(HostsUpdatedInterrupt) as raised:
        state.check_host_updates()
    assert not raised.value.skip_sync
    state.check_host_updates()  # once


@pytest.mark.parametrize("kind", [HostUpdate.REMOVED, HostUpdate.MIXED])
def test_ranks_that_must_go_do_not_wait_for_others(monkeypatch, kind) -> None:
    state = ObjectState(lambda obj: obj, lambda: 0, batch=0)
    monkeypatch.setattr(state, "_part_server", Patient())
    state.on_hosts_updated(1, HostUpdate.ADDED)
    state.check_host_updates()
    state.on_hosts_updated(2, kind)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()
