"""A stand-in for the collectives: records what is submitted, as if other ranks sent the same."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.core.operations import Average, Kind, Sum
from horovod.tensorflow import collectives, run_time


@dataclass
class Submission:
    kind: str
    names: list[str]
    options: tuple


@dataclass
class FakeOps:
    """A world of two equal ranks; ``CollectiveOps`` for a single process."""

    size: int = 2
    submissions: list[Submission] = field(default_factory=list)

    def run(self, call, names, tensors):
        if call.kind is Kind.ALLREDUCE:
            kind = "group" if call.is_group else "allreduce"
            options = (call.op, call.prescale, call.postscale)
            self.submissions.append(Submission(kind, list(names), options))
            factor = call.prescale * call.postscale * {Average: 1, Sum: self.size}[call.op]
            return [tensor * tf.cast(factor, tensor.dtype) for tensor in tensors]
        assert call.kind is Kind.ALLGATHER
        kind = "group of rows" if call.is_group else "allgather"
        self.submissions.append(Submission(kind, list(names), ()))
        return [tf.concat([tensor] * self.size, 0) for tensor in tensors]

    def world_number(self, what, process_set, name):
        return {"size": self.numbers["size"], "included": self.numbers["included"]}[what]

    @property
    def names(self) -> list[list[str]]:
        return [submission.names for submission in self.submissions]


@pytest.fixture
def ops(monkeypatch) -> FakeOps:
    fake = FakeOps()
    monkeypatch.setattr(collectives, "implementation", lambda: fake)
    monkeypatch.setattr(hvd.global_process_set, "ranks", [0, 1])
    monkeypatch.setattr(hvd.global_process_set, "size", lambda: 2)
    monkeypatch.setattr(hvd.global_process_set, "included", lambda: True)
    return fake


@pytest.fixture
def elastic(ops, monkeypatch):
    """Graphs ask for size and membership when they run: in these variables."""
    monkeypatch.setattr(run_time, "_is_asked_later", lambda: not tf.executing_eagerly())
    ops.numbers = {"size": tf.Variable(2), "included": tf.Variable(1)}
    return ops.numbers


@pytest.fixture
def world():
    """A world of one."""
    hvd.init()
    yield
    hvd.shutdown()
