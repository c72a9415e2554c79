"""Forty ranks never come: the bootstrap, the members and the driver hear of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from horovod.errors import HorovodInternalError, InitError, from_code
from horovod.rendezvous.identity.elastic_client import ElasticClient
from horovod.rendezvous.identity.elastic_messages import (
    RankAssignment,
    Ready,
    StateVersion,
    WorkerKeys,
)
from horovod.rendezvous.mesh import connect
from horovod.rendezvous.store.client import StoreClient
from horovod.rendezvous.store.server import StoreServer

from .policy.story import Story, running

SECRET = b"s" * 32
PRESENT, MISSING = range(4), range(4, 44)
DOUBT_S = 1.0


@pytest.fixture
def story() -> Story:
    return running(Story(44, min_np=4), a=4, b=40)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer(SECRET) as server:
        yield server


def client_of(server: StoreServer) -> closing[StoreClient]:
    return closing(StoreClient(server.address, SECRET, timeout_s=30))


def failure_of_init(server: StoreServer, assignment: RankAssignment) -> InitError:
    identity = assignment.process_info({"HOROVOD_HOSTNAME": "a"})
    with client_of(server) as store:
        if identity.rank == 0:  # it counts the time; the others are here before
            for rank in PRESENT[1:]:
                store.get(f"mesh/{identity.scope}1/capabilities/{rank}", 30)
        with pytest.raises(InitError) as failure:
            connect(identity, store, SECRET, 1, 1 << 16, 60.0 if identity.rank else 1.0)
    return failure.value


def asked_by(
    server: StoreServer,
    worker: int,
    assignment: RankAssignment,
    error: HorovodInternalError | InitError,
) -> Ready:
    """What the driver hears of a worker that asks for its next rank because of ``error``."""
    member, keys = ElasticClient(worker), WorkerKeys(worker)
    with client_of(server) as store:
        store.set(keys.assignment(1), assignment.to_bytes())
        member.request_assignment(lambda: store)
        member.state_version = StateVersion(assignment.world, 1)
        member.note_failure(error)
        store.set(keys.assignment(2), assignment.to_bytes())
        member.request_assignment(lambda: store)
        return Ready.from_bytes(store.get(keys.ready(2), 30))


def tell(story: Story, worker: int, ready: Ready) -> None:
    story._note(story.policy.worker_ready(story.now, worker, ready))


def test_ranks_that_do_not_come(story: Story, server: StoreServer) -> None:
    assignments = [story.assignments[worker] for worker in PRESENT]
    with ThreadPoolExecutor(len(assignments)) as pool:
        errors = list(pool.map(lambda assignment: failure_of_init(server, assignment), assignments))
    for worker, error in zip(PRESENT, errors, strict=True):
        assert str(error) == (
            "init: ranks 4-43 of 44 did not arrive within 1 s (HOROVOD_START_TIMEOUT)"
        )
        assert error.ranks == tuple(MISSING)
        ready = asked_by(server, worker, story.assignments[worker], error)
        assert ready.lost == tuple(MISSING)
        tell(story, worker, ready)
    story.wait(DOUBT_S)
    assert story.ended == list(MISSING)


def test_ranks_that_the_engine_misses(story: Story, server: StoreServer) -> None:
    # As its alarm says: the text is cut, and names none of them.
    error = from_code(4, "allreduce 'x' waits for", ranks=MISSING, operation="allreduce 'x'")
    assert isinstance(error, HorovodInternalError)
    for worker in PRESENT:
        tell(story, worker, asked_by(server, worker, story.assignments[worker], error))
    story.wait(DOUBT_S)
    assert story.ended == list(MISSING)
