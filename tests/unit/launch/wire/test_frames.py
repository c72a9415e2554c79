"""Frames between a launcher and its agents, and what sends them without blocking."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.core.base.checked import BadMessageError
from horovod.launch.wire.frames import (
    Frame,
    FrameError,
    FrameReader,
    FrameWriter,
    Kind,
    encode,
    encode_json,
)

frames = st.builds(
    Frame, st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.integers(0, 1), st.binary()
)


@settings(deadline=None)  # other processes may need the machine
@given(st.lists(frames), st.integers(1, 7))
def test_frames_survive_any_cut(sent: list[Frame], step: int) -> None:
    data = b"".join(encode(f.kind, f.payload, worker=f.worker, stream=f.stream) for f in sent)
    reader = FrameReader()
    received: list[Frame] = []
    for start in range(0, len(data), step):
        received += reader.feed(data[start : start + step])
    assert received == sent


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers(number: int) -> None:
    (frame,) = FrameReader().feed(encode(Kind.EXITED, number, worker=3))
    assert (frame.number, frame.worker) == (number, 3)


def test_fields_keep_bytes_that_are_no_text() -> None:
    (frame,) = FrameReader().feed(encode_json(Kind.PLAN, {"a": ["\udcff", "ä"]}))
    assert frame.fields.texts("a") == ("\udcff", "ä")


@pytest.mark.parametrize(
    "data", [b"\xff" * 10, encode(Kind.KILL)[:6] + b"\xff" * 4, b"Welcome to node-1\n"]
)
def test_what_is_no_frame(data: bytes) -> None:
    with pytest.raises(FrameError, match="a frame of kind"):
        list(FrameReader().feed(data))


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"\xff"])
def test_what_is_no_json_object(payload: bytes) -> None:
    with pytest.raises(BadMessageError, match=r"message 'HELLO' has .* in field text"):
        _ = Frame(Kind.HELLO, payload=payload).fields


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def read_all(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 20)
    except BlockingIOError:
        return b""


def test_a_source_is_asked_only_for_what_is_taken(pipe: tuple[int, int]) -> None:
    reader, writer_fd = pipe
    pieces = iter(range(10_000))
    source = (encode(Kind.CALL, bytes([piece % 256]) * 1024) for piece in pieces)
    with selectors.DefaultSelector() as selector:
        writer = FrameWriter(writer_fd, selector)
        writer.send_from(source)
        assert next(pieces) < 1000
        writer.send(encode(Kind.KILL))
        received = FrameReader()
        found: list[Frame] = []
        while not any(frame.kind == Kind.KILL for frame in found):
            for key, _ in selector.select(0):
                key.data()
            writer.refill()
            found += received.feed(read_all(reader))
        assert len(found) < 2000  # what came later did not wait for the whole source
        writer.close()
        assert not selector.get_map()


def test_a_reader_that_has_gone() -> None:
    reader, writer_fd = os.pipe()
    os.close(reader)
    with selectors.DefaultSelector() as selector:
        writer = FrameWriter(writer_fd, selector)
        writer.send(encode(Kind.KILL))
        for key, _ in selector.select(0):
            key.data()
        assert writer.is_broken
        writer.close()
    os.close(writer_fd)
