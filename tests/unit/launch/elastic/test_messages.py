"""What a driver tells its workers, and what another one tells them again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from horovod.launch.elastic.memory import (
    DriverMessages,
    JobRefusedError,
    Record,
    new_record,
    open_store,
)
from horovod.launch.elastic.policy.actions import Abandon
from horovod.launch.model.job_plan import ElasticPlan, JobPlan, Limits
from horovod.rendezvous.identity.elastic_messages import (
    RankAssignment,
    Update,
    WorkerKeys,
    update_key,
)
from horovod.rendezvous.store.client import AbandonedError, StoreClient
from horovod.rendezvous.store.server import StoreServer

KEYS = WorkerKeys(5)
UPDATES = [Update(10, 1), Update(20, 2)]


@pytest.fixture
def record() -> Record:
    return new_record(
        JobPlan(("true",), elastic=ElasticPlan(Limits(1, 1, None, None, 600.0, None)))
    )


def store_of(record: Record) -> StoreServer:
    def report(text: str) -> None:
        raise AssertionError(text)

    return open_store(record, report=report, on_set=lambda key, value: None)


@pytest.fixture
def client(record: Record) -> Iterator[StoreClient]:
    """What workers find at the second driver's, after the first has said a few things."""
    with store_of(record) as server:
        record.stores = server.addresses
        messages = DriverMessages(server, record)
        assert messages.note_question(5, 1)
        messages.publish(UPDATES[0])
        messages.answer(5, RankAssignment(world=1, updates=1))
        messages.publish(UPDATES[1])
        messages.abandon(Abandon(1, "worker 3 died"))
        assert messages.note_question(5, 2)
    with store_of(record) as server:
        messages = DriverMessages(server, record)
        messages.restore()
        assert not messages.note_question(5, 1)
        assert messages.note_question(5, 2)
        with closing(StoreClient(server.address, record.secret, timeout_s=30)) as client:
            yield client


def test_answers_and_updates_of_this_world_are_given_again(client: StoreClient) -> None:
    assert RankAssignment.from_bytes(client.get(KEYS.assignment(1), 30)).world == 1
    assert Update.from_bytes(client.get(update_key(2), 30)) == UPDATES[1]
    for key in (update_key(1), KEYS.assignment(2)):
        with pytest.raises(TimeoutError):
            client.get(key, 0)


def test_who_still_meets_in_a_broken_world_hears_of_it(client: StoreClient) -> None:
    for what in ("mesh", "plane"):
        with pytest.raises(AbandonedError, match="worker 3 died"):
            client.get(f"{what}/world1/key", 30)


def test_nobody_else_may_listen_there(record: Record) -> None:
    with store_of(record) as server:
        record.stores = server.addresses
        with pytest.raises(JobRefusedError, match=r"look for horovodrun at 127.0.0.1:\d+: "):
            store_of(record)


def test_nothing_is_kept_for_who_has_ended(record: Record) -> None:
    with store_of(record) as server:
        messages = DriverMessages(server, record)
        messages.note_question(5, 1)
        messages.answer(5, RankAssignment(world=1))
        assert messages.has_heard
        messages.forget(5)
        assert not messages.has_heard
        assert record.answers == {}
