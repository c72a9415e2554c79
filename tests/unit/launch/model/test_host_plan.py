"""What travels to an agent: the plan of its host, and a call with its answers."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from horovod.core.base.checked import Fields
from horovod.core.base.rank_info import RankInfo
from horovod.launch.calls.call import CallFiles, memory_file
from horovod.launch.model.host_plan import (
    HostPlan,
    WorkerSpec,
    remote_environment,
)
from horovod.launch.wire.frames import CHUNK_BYTES, Frame, FrameReader, Kind
from horovod.launch.wire.remote_call import RemoteAnswers, answer_frames, call_frames

PLAN = HostPlan(
    hostname="h",
    argv=("python", "x y.py", "\udcff"),
    environment={"A": "b\n\udcfe"},
    stores=(("10.0.0.1", 4000), ("fd00::1", 4001)),
    secret=b"\0\xffsecret",
)


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        replace(PLAN, interfaces=("eth0",), has_call=True, store_timeout_s=2.5),
        replace(PLAN, interfaces=()),
    ],
)
def test_a_plan_survives_the_journey(plan: HostPlan) -> None:
    assert HostPlan.read(Fields.read("plan", plan.to_bytes())) == plan


def test_a_place_survives_the_journey() -> None:
    spec = WorkerSpec(7, RankInfo(1, 3, 0, 2, 1, 2, "h"), {"C": "d\udcff"})
    assert WorkerSpec.read(Fields.read("place", spec.to_bytes())) == spec


def test_a_plan_does_not_show_the_secret() -> None:
    assert "secret" not in repr(PLAN)


def test_what_other_hosts_see_of_the_environment() -> None:
    environ = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "0",
        "NV_CUDA_VISIBLE_DEVICES": "0",
        "CUDA_VISIBLE_DEVICES_OLD": "kept",
        "OLDPWD": "/",
        "BASH_FUNC_x%%": "() { :; }",
        "_HOROVOD_SECRET_KEY": "of another job",
        "SSH_CONNECTION": "1 2 3 4",
        "HOROVOD_CYCLE_TIME": "2",
    }
    kept = {"PATH", "CUDA_VISIBLE_DEVICES_OLD", "HOROVOD_CYCLE_TIME"}
    assert set(remote_environment(environ)) == kept


def frames_of(data: list[bytes]) -> list[Frame]:
    return list(FrameReader().feed(b"".join(data)))


def test_a_call_travels_in_pieces() -> None:
    with memory_file() as file:
        content = os.urandom(2 * CHUNK_BYTES + 5)
        file.write(content)
        file.flush()
        pieces = frames_of(list(call_frames(CallFiles(file.fileno(), ()))))
    assert [frame.kind for frame in pieces] == [Kind.CALL] * 3
    assert b"".join(frame.payload for frame in pieces) == content
    assert list(call_frames(None)) == []


def test_an_answer_counts_once_it_is_complete() -> None:
    with memory_file() as there, memory_file() as here:
        content = b"R" + os.urandom(CHUNK_BYTES)
        there.write(content)
        there.flush()
        *pieces, last = frames_of(list(answer_frames(0, there.fileno(), -9)))
        assert (last.kind, last.number) == (Kind.EXITED, -9)
        answers = RemoteAnswers(CallFiles(-1, (here.fileno(),)))
        for frame in pieces:
            answers.add(frame.worker, frame.payload)
        assert here.read() == b"\0" + content[1:]
        answers.complete(0)
        here.seek(0)
        assert here.read() == content


@pytest.mark.parametrize("begun", [b"", b"\0half an answer"])
def test_an_answer_that_was_broken_off_does_not_travel(begun: bytes) -> None:
    with memory_file() as there:
        there.write(begun)
        there.flush()
        (only,) = frames_of(list(answer_frames(2, there.fileno(), 1)))
    assert (only.kind, only.worker, only.number) == (Kind.EXITED, 2, 1)
