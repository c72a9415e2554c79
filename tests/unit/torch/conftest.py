"""A stand-in for the engine: records what the optimizer submits, changes no tensor."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from torch import Tensor

from horovod.operations import Intent
from horovod.torch import adapter, optimizer


@dataclass
class Submission:
    names: list[str]
    tensors: list[Tensor]
    operation: tuple[int, float, float]
    intent: Intent


@dataclass
class FakeEngine:
    """A world of two ranks whose other rank always sends zeros, summed."""

    spare_cores: bool = True
    failure: Exception | None = None
    submissions: list[Submission] = field(default_factory=list)
    waited: list[int] = field(default_factory=list)

    def submit(self, tensors, names, op, prescale_factor, postscale_factor, *, intent):
        operation = (op, prescale_factor, postscale_factor)
        self.submissions.append(Submission(names, tensors, operation, intent))
        return len(self.submissions)

    def synchronize(self, handle):
        assert 1 <= handle <= len(self.submissions)
        if handle in self.waited:
            return
        self.waited.append(handle)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    @property
    def names(self) -> list[list[str]]:
        return [submission.names for submission in self.submissions]

    @property
    def intents(self) -> list[Intent]:
        return [submission.intent for submission in self.submissions]


@pytest.fixture
def engine(monkeypatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr(adapter, "spare_cores", lambda: fake.spare_cores)
    monkeypatch.setattr(adapter, "allreduce_batch_async_", fake.submit)
    monkeypatch.setattr(adapter, "synchronize", fake.synchronize)
    monkeypatch.setattr(optimizer, "size", lambda: 2)
    return fake
