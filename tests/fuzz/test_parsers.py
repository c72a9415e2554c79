"""Every parser of bytes from outside, given real messages with changes by chance: it returns, or
raises the one error that its callers expect. HOROVOD_FUZZ_SECONDS says for how long; without it
each parser gets a fixed number of changes, the same every time.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import made_reports
import pytest

from horovod.core import agreement
from horovod.core.base.checked import MOST_RANKS, BadMessageError, Fields
from horovod.core.base.own_files import OwnFolder
from horovod.core.base.rank_info import RankInfo
from horovod.elastic.checkpoint import read_checkpoint, write_checkpoint
from horovod.errors import HorovodInternalError, InitError
from horovod.launch.elastic import memory
from horovod.launch.kubernetes import pod
from horovod.launch.model.host_plan import (
    HostPlan,
    WorkerSpec,
)
from horovod.launch.wire.frames import Frame, FrameError, FrameReader, Kind, encode
from horovod.launch.wire.handshake import AgentHandshake, LauncherHandshake
from horovod.metrics import setup
from horovod.rendezvous import allgather as store_allgather
from horovod.rendezvous.allgather import StoreAllgather
from horovod.rendezvous.base.authentication import PROOF_BYTES, prove
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.handshake import Dialer, Listener, Protocol, ProtocolError
from horovod.rendezvous.capabilities import RankCapabilities
from horovod.rendezvous.host import handshake
from horovod.rendezvous.identity import mpi as mpi_identity
from horovod.rendezvous.identity import slurm
from horovod.rendezvous.identity.elastic_messages import (
    RankAssignment,
    Ready,
    StateVersion,
    Update,
    read_key,
)
from horovod.rendezvous.identity.host_id import HostId as Where
from horovod.rendezvous.links import handshake as link_handshake
from horovod.rendezvous.links import round as link_round
from horovod.rendezvous.links.plan import FailedTry, MissingLink, Purpose, Report, Unreached
from horovod.rendezvous.store import wire
from horovod.rendezvous.store.hosted import HostedStore
from horovod.trace.presence import find_presences
from horovod.trace.recording import RecordingError, read_recording
from horovod.trace.report.facts import Job
from horovod.trace.report.merge import collected
from horovod.trace.worlds import collect_worlds

CHANGES = 200
MOST_MEMORY = 64 * 2**20  # of one message, which has some KB
SECRET = b"s" * 32


@dataclass(frozen=True)
class Parser:
    """``parse`` may raise ``errors``, nothing else."""

    seeds: Callable[[], list[bytes]]
    parse: Callable[[bytes, Path], object]
    errors: tuple[type[Exception], ...] = (BadMessageError,)


def of(value: bytes, *more: bytes) -> Callable[[], list[bytes]]:
    return lambda: [value, *more]


SLOT = RankInfo(1, 4, 1, 2, 0, 2, "node")
PLAN = HostPlan("node", ("python", "a.py"), {"PATH": "/bin"}, (("10.0.0.1", 4000),), SECRET)
CAPABILITIES = RankCapabilities(1, 4, 4096, 77, "node", "node", Where("h", "n"))
UNREACHED = Unreached(2, [MissingLink(1, 0)], [FailedTry("10.0.0.1:1", "refused")])
REPORT = Report(0, (1,), [UNREACHED])
CLAIMS = handshake.Claims(1, 2, 0, 4096)
CHALLENGE = handshake.message(
    handshake.Kind.CHALLENGE, Listener(handshake.PROTOCOL, SECRET).opening
)
LINK = link_handshake.Claims(Purpose.DATA, 0, 1, 0, "10.0.0.1", 4000, b"c" * 32)
ADDRESS = {"host": "10.0.0.5", "bits": 24, "interface": "eth0", "scope": 0, "speed": 1000}
MEMBER = {"build": "horovod", "listening": [{"address": ADDRESS, "port": 4000}]}


def frames(data: bytes, _: Path) -> None:
    for frame in FrameReader().feed(data):
        if frame.kind in (Kind.STARTED, Kind.TAKEN, Kind.EXITED):
            _ = frame.number
        elif frame.kind == Kind.PLAN:
            HostPlan.read(frame.fields)
        elif frame.kind == Kind.START:
            WorkerSpec.read(frame.fields)


def sides(protocol: Protocol, statement: bytes) -> tuple[Listener, Dialer]:
    """Both ends of a connection after the hello."""
    listener, dialer = Listener(protocol, SECRET), Dialer(protocol, SECRET)
    assert listener.read_hello(dialer.hello(listener.opening, statement)) == statement
    return listener, dialer


def mesh_messages(data: bytes, _: Path) -> None:
    """Each message with a valid proof, since an authentic peer may send wrong values too."""
    root, peer = sides(handshake.PROTOCOL, CLAIMS.to_bytes())
    code = prove(root.key(b"failure"), b"failure", data)
    failed = handshake.message(handshake.Kind.FAILED, code + data)
    failure = handshake.failure_in(failed, peer, 0)
    assert failure is not None
    assert all(0 <= rank < MOST_RANKS for rank in failure.ranks)
    handshake.Members.from_bytes(data[:10].ljust(10, b"\0"), 2)
    answer = peer.read_reply(root.reply(data[10:22].ljust(12, b"\0")))
    assert handshake.seconds_in(answer, 0) >= 0


def raw_mesh_messages(data: bytes, _: Path) -> None:
    root, peer = sides(handshake.PROTOCOL, CLAIMS.to_bytes())
    fresh = Dialer(handshake.PROTOCOL, SECRET)
    fresh.hello(handshake.payload_of(data, handshake.Kind.CHALLENGE))
    handshake.failure_in(data, peer, 0)
    root.read_hello(data)


def link_hello(data: bytes, _: Path) -> None:
    statement_bytes = link_handshake.PROTOCOL.statement_bytes
    statement = data[:statement_bytes].ljust(statement_bytes, b"\0")
    listener, dialer = sides(link_handshake.PROTOCOL, statement)
    link_handshake.Claims.from_bytes(statement)
    answer = dialer.read_reply(listener.reply(data[:1].ljust(1, b"\0")))
    link_handshake.Verdict.of(answer)


class OneValue:
    """A store that has the same value, proof included, under every key."""

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.is_closed = False

    def set(self, key: str, value: bytes) -> None:
        pass

    def get(self, key: str, timeout_s: float) -> bytes:
        role = store_allgather._ROLE
        return prove(SECRET, role, key.encode(), self.value) + self.value

    def close(self) -> None:
        pass


def gathered(data: bytes, _: Path) -> None:
    store = OneValue(data)
    StoreAllgather(store, SECRET, "key", 1, range(2), Deadline(0.0)).wait()


def gathered_time(data: bytes, _: Path) -> None:
    StoreAllgather(
        OneValue(struct.pack("!I", 0) + data),
        SECRET,
        "key",
        1,
        range(2),
        Deadline(0.0),
        is_bootstrap=True,
    ).exchange(b"")


def recording(data: bytes, folder: Path) -> None:
    path = folder / "a.hvdrec"
    path.write_bytes(data)
    collect_worlds([read_recording(path)])


def presences(data: bytes, folder: Path) -> None:
    (folder / "rank-0.running").write_bytes(data)
    opened = OwnFolder(folder)
    try:
        find_presences(opened)
    finally:
        opened.close()


def checkpoint(data: bytes, folder: Path) -> None:
    path = folder / "state"
    path.write_bytes(data)
    read_checkpoint(path, "state")


def checkpoint_seeds() -> list[bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        write_checkpoint(path, "state", {"a": 1, "b": [2.0, "x"]})
        return [path.read_bytes()]


def a_recording() -> list[bytes]:
    head = {
        "horovod_recording": 1,
        "rank": 0,
        "name": "rank 0",
        "written_by": 0,
        "reason": "end",
        "detail": "",
        "written_ns": 1,
        "written_epoch_ns": 2,
        "lost": 0,
        "usage": {"elapsed_ns": 9, "cpu_ns": 8, "kernel_ns": 7, "page_faults": 6},
        "world": {"world": "1", "size": 1, "ranks": ["rank 0"]},
        "labels": 1,
        "events": 2,
        "stacks_bytes": 2,
    }
    return [json.dumps(head).encode() + b"\n" + bytes(184 + 2 * 24 + 2)]


def reported(data: bytes, _: Path) -> None:
    job = Job(command="a", job_id="", begin_s=0.0, end_s=9.0, status=0, outcome="", messages=[])
    collected(job, [data])


def process_sets_agree(data: bytes, _: Path) -> None:
    agreement._proposal_in(1, data)
    agreement.groups_in(1, data, 2)


def agent(data: bytes, _: Path) -> None:
    AgentHandshake(SECRET).feed(data)


def launcher_of_guest(data: bytes, _: Path) -> None:
    side = LauncherHandshake(SECRET)
    for at in range(0, len(data), 7):
        side.feed(data[at : at + 7])


PARSERS: Mapping[str, Parser] = {
    "store": Parser(
        of(wire.Request(wire.Operation.SET, b"key", b"value").to_bytes()),
        lambda data, _: wire.Request.from_bytes(data),
        (ProtocolError,),
    ),
    "link hello": Parser(of(LINK.to_bytes()), link_hello, (ProtocolError,)),
    "mesh": Parser(
        of(struct.pack("!I?I?Id", 7, True, 8, False, 0, 2.0)), mesh_messages, (ProtocolError,)
    ),
    "raw mesh": Parser(of(CHALLENGE), raw_mesh_messages, (ProtocolError,)),
    "frames": Parser(
        of(
            encode(Kind.PLAN, PLAN.to_bytes()),
            encode(Kind.START, WorkerSpec(3, SLOT, {"A": "b"}).to_bytes()),
            encode(Kind.STARTED, 77, worker=3) + encode(Kind.EXITED, -9, worker=3),
        ),
        frames,
        (FrameError, BadMessageError),
    ),
    "ready": Parser(
        of(Ready(StateVersion(1, 2), "why", (3,), checkpoint="/c").to_bytes()),
        lambda data, _: Ready.from_bytes(data),
    ),
    "seat": Parser(
        of(RankAssignment(2, RankInfo(1, 2), members=(4, 5)).to_bytes()),
        lambda data, _: RankAssignment.from_bytes(data),
    ),
    "update": Parser(of(Update(17, 3).to_bytes()), lambda data, _: Update.from_bytes(data)),
    "key": Parser(
        of(b"elastic/worker/3/ready/2"),
        lambda data, _: read_key(data[:255].decode(errors="replace")),
    ),
    "capabilities": Parser(
        of(CAPABILITIES.to_bytes()), lambda data, _: RankCapabilities.from_bytes(data)
    ),
    "report": Parser(of(REPORT.to_bytes()), lambda data, _: Report.about(range(4), data)),
    "addresses": Parser(
        of(json.dumps(MEMBER).encode()), lambda data, _: link_round._Member.from_bytes(data)
    ),
    "gathered values": Parser(
        of(struct.pack("!I", 0) + b"+" + store_allgather.packed([b"a"] * 2)),
        gathered,
        (InitError,),
    ),
    "gathered time": Parser(of(struct.pack("!d", 0.0)), gathered_time, (InitError,)),
    "hosted store": Parser(
        of(HostedStore((("10.0.0.5", 4000),), SECRET).to_bytes()),
        lambda data, _: HostedStore.from_bytes(data),
        (ValueError,),
    ),
    "places of MPI": Parser(
        of(struct.pack("=8i", 0, 0, 0, 1, 2, 0, 2, 1)),
        lambda data, _: mpi_identity._check_positions(struct.unpack("=8i", data[:32].ljust(32)), 4),
    ),
    "tasks of Slurm": Parser(
        of(b"2(x3),1"),
        lambda data, _: slurm._tasks_per_node({slurm._PER_NODE: data.decode(errors="replace")}, 7),
        (InitError,),
    ),
    "guest": Parser(of(bytes(2 * PROOF_BYTES)), agent, (ProtocolError,)),
    "launcher of a guest": Parser(
        of(AgentHandshake(SECRET).opening + bytes(PROOF_BYTES)),
        launcher_of_guest,
        (ProtocolError,),
    ),
    "recording": Parser(a_recording, recording, (RecordingError,)),
    "presence": Parser(
        of(b'{"horovod_running": 1, "rank": 0, "pid": 7, "start": 1, "place": "p", "world": {}}'),
        presences,
        (),
    ),
    "job memory": Parser(
        of(b'{"version": "1", "boot": "b", "job": "j", "command": "c"}'),
        lambda data, _: memory.heading_in(data),
        (),
    ),
    "checkpoint": Parser(checkpoint_seeds, checkpoint, (ValueError, OSError)),
    "store of a pod": Parser(
        of(b"10.0.0.5 4000"), lambda data, _: pod._address_in(data), (InitError,)
    ),
    "process sets": Parser(
        of(b'[{"add": [0, 1]}, null]', b"[[0, 1], null]"),
        process_sets_agree,
        (HorovodInternalError,),
    ),
    "metrics": Parser(
        of(b'{"steps": 4, "report_time_seconds": 1.5}'),
        lambda data, _: setup._numbers_in(data),
    ),
    "numbers of a process": Parser(
        lambda: [made_reports.process_record(0, 2, 3).to_bytes()], reported, ()
    ),
}

HOSTILE: tuple[Any, ...] = (
    *(-1, 0, 2**30, -(2**30), 2_000_000_000, 100_000, 2**63, 2**200, 1e400, float("nan"), -0.5),
    *(None, True, "", "\x1b[2J", "\ud800", "x" * 70_000, [], {}, [[]], [{}], [1, 2, 3], {"a": 1}),
)


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if not isinstance(value, (dict, list)):
        return
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        yield from places_in(each, (*path, key))


def with_value(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = value.copy()
    changed[path[0]] = with_value(value[path[0]], path[1:], new)
    return changed


def changed_json(chance: random.Random, seed: bytes) -> bytes:
    """Another value in one place of it, a field too many, or very deep."""
    value = json.loads(seed)
    path = chance.choice(list(places_in(value)))
    what = chance.randrange(10)
    if what == 0 and isinstance(value, dict):
        return json.dumps({**value, "more": 1}).encode()
    if what == 1:
        return json.dumps(with_value(value, path, "@")).encode().replace(b'"@"', b"[" * 100_000)
    return json.dumps(with_value(value, path, chance.choice(HOSTILE))).encode()


def changed_bytes(chance: random.Random, seed: bytes) -> bytes:
    data = bytearray(seed)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        at = chance.randrange(len(data) + 1)
        what = chance.randrange(5)
        if what == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            data[at : at + 4] = chance.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)))
        elif what == 2:
            del data[at:]
        elif what == 3:
            del data[at : at + chance.randrange(9)]
        else:
            data[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(9)))
    return bytes(data)


def is_json(seed: bytes) -> bool:
    try:
        return isinstance(json.loads(seed), (dict, list))
    except ValueError:
        return False


def changes_of(chance: random.Random, seeds: list[bytes]) -> Iterator[bytes]:
    texts = {seed: is_json(seed) for seed in seeds}
    while True:
        seed = chance.choice(seeds)
        by_value = texts[seed] and chance.random() < 0.7
        yield changed_json(chance, seed) if by_value else changed_bytes(chance, seed)


def seconds_each() -> float:
    return float(os.environ.get("HOROVOD_FUZZ_SECONDS", "0")) / len(PARSERS)


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_returns_or_raises_what_its_callers_expect(name: str, tmp_path: Path) -> None:
    parser = PARSERS[name]
    seeds = parser.seeds()
    for seed in seeds:
        with contextlib.suppress(*parser.errors):  # a proof that holds cannot be known beforehand
            parser.parse(seed, tmp_path)
    deadline = time.monotonic() + seconds_each()
    chance = random.Random(time.time_ns() if seconds_each() else 20)
    for count, data in enumerate(changes_of(chance, seeds)):
        if count >= CHANGES and time.monotonic() >= deadline:
            break
        try:
            parser.parse(data, tmp_path)
        except parser.errors:
            continue
        except Exception as error:
            pytest.fail(f"{name}: {error!r} of {data[:2000]!r}")


def test_a_frame_of_any_length_needs_no_memory_before_it_is_there() -> None:
    head = encode(Kind.OUTPUT, b"")[:-4] + struct.pack("!I", 16 * 1024 * 1024)
    tracemalloc.start()
    assert list(FrameReader().feed(head)) == []
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < MOST_MEMORY


def test_errors_name_message_field_sender_and_what_was_expected() -> None:
    bad = json.loads(CAPABILITIES.to_bytes())
    bad["rank"] = 2**30
    with pytest.raises(BadMessageError) as raised:
        RankCapabilities.from_bytes(json.dumps(bad).encode())
    error = raised.value
    assert (error.message, error.field, error.found) == ("capabilities", "rank", str(2**30))
    assert str(error.of("rank 4")) == (
        "a message 'capabilities' from rank 4 has 1073741824 in field rank; expected 0 to 16777215"
    )
    with pytest.raises(BadMessageError, match="field more; expected no such field"):
        RankCapabilities.from_bytes(
            json.dumps({**json.loads(CAPABILITIES.to_bytes()), "more": 1}).encode()
        )


def test_all_ranks_get_the_error_of_the_rank_that_sent_it() -> None:
    with pytest.raises(InitError, match=r"message 'capabilities' from rank 1 has .* in field text"):
        store_allgather.decode_all(
            [0, 1], [CAPABILITIES.to_bytes(), b"{"], RankCapabilities.from_bytes
        )


def test_a_frame_says_what_is_wrong_with_it() -> None:
    with pytest.raises(BadMessageError, match="'STARTED' has 2 bytes in field payload"):
        _ = Frame(Kind.STARTED, payload=b"ab").number
    with pytest.raises(FrameError, match="stream 7"):
        list(FrameReader().feed(encode(Kind.OUTPUT, b"x", stream=7)))
    fields = json.loads(WorkerSpec(3, SLOT, {}).to_bytes())
    fields["rank_info"]["rank"] = 4
    with pytest.raises(BadMessageError, match=r"field rank_info\.rank; expected 0 to 3"):
        WorkerSpec.read(Fields("START", fields))
