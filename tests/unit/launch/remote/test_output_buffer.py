"""Output that no launcher takes is kept up to a bound, in whole lines."""

from __future__ import annotations

from horovod.launch.remote.launcher_connection import OutputBuffer


def test_lines_come_back_in_their_order_and_once() -> None:
    buffer = OutputBuffer()
    buffer.add((0, 0), b"one\ntw")
    buffer.add((1, 1), b"other\n")
    buffer.add((0, 0), b"o\nthr")
    assert list(buffer.take()) == [
        ((0, 0), b"one\n"),
        ((1, 1), b"other\n"),
        ((0, 0), b"two\n"),
        ((0, 0), b"thr"),
    ]
    assert list(buffer.take()) == []


def test_the_oldest_lines_go_first_and_are_counted() -> None:
    buffer = OutputBuffer(max_bytes=10)
    buffer.add((0, 0), b"1234\n")
    buffer.add((1, 0), b"abcd\n")
    buffer.add((0, 0), b"56")
    assert buffer.dropped_lines == 1
    buffer.add((0, 0), b"78\n9\n")
    assert buffer.dropped_lines == 2
    assert list(buffer.take()) == [((0, 0), b"5678\n"), ((0, 0), b"9\n")]
    assert buffer.dropped_lines == 0


def test_a_line_without_end_fills_no_memory() -> None:
    buffer = OutputBuffer(max_bytes=200_000)
    for _ in range(100):
        buffer.add((0, 0), bytes(50_000))
    assert sum(len(data) for _, data in buffer.take()) <= 250_000
