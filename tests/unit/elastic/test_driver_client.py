"""What the retry loop tells a driver, and when it lets the driver decide."""

from __future__ import annotations

import pytest

from horovod.elastic import NotificationManager, ObjectState
from horovod.elastic.retry import DriverClient
from horovod.errors import HorovodInternalError, HostsUpdatedInterrupt
from horovod.rendezvous.identity.elastic_client import ElasticClient
from horovod.rendezvous.identity.elastic_messages import RankAssignment, StateVersion, Update


def new_state() -> ObjectState:
    return ObjectState(lambda obj: obj, lambda: 0, batch=0)


def test_without_a_driver_the_loop_decides() -> None:
    alone = DriverClient(None)
    manager = NotificationManager()
    alone.watch_updates(manager)
    assert not manager.has_source
    assert alone.must_sync(True)
    assert not alone.must_sync(False)


@pytest.mark.parametrize("must_sync", [False, True])
def test_with_a_driver_the_seat_decides(must_sync: bool) -> None:
    member = ElasticClient(3)
    member.assignment = RankAssignment(must_sync=must_sync)
    assert DriverClient(member).must_sync(True) == must_sync
    assert DriverClient(member).must_sync(False) == must_sync


def test_standing_grows_with_commits_and_begins_anew_with_each_sync() -> None:
    member, state = ElasticClient(3), new_state()
    client = DriverClient(member)
    member.assignment = RankAssignment(world=2)
    state.commit()
    client.note_sync(state)
    assert member.state_version == StateVersion(2, 0)
    state.commit()
    state.commit()
    client.note_failure(state, HorovodInternalError("rank 1 died"))
    assert member.state_version == StateVersion(2, 2)
    # In a world that needed no sync, counting goes on.
    member.assignment = RankAssignment(world=3, must_sync=False)
    state.commit()
    client.note_update(state, keeps_state=True)
    assert member.state_version == StateVersion(2, 3)


def test_updates_come_from_the_driver_once_it_is_known() -> None:
    manager = NotificationManager()
    client = DriverClient(ElasticClient(3))
    client.watch_updates(manager)
    assert manager.has_source


def test_news_of_a_world_that_come_before_its_reset_are_not_forgotten() -> None:
    class InformedMember(ElasticClient):
        def news(self) -> list[Update]:
            return [Update(40, 2)]

    state = new_state()
    state.on_hosts_updated(30, 1)
    state.on_hosts_updated(40, 2)
    state.on_reset()
    state.check_host_updates()
    DriverClient(None).repeat_news(state)
    state.check_host_updates()
    DriverClient(InformedMember(3)).repeat_news(state)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()
