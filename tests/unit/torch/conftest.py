"""A stand-in for the engine: records what the optimizer submits, changes no tensor."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from horovod.core.operations import Intent
from horovod.torch import adapter, optimizer, sparse_gradients


@dataclass
class Submission:
    names: list[str]
    tensors: list[Tensor]
    operation: tuple[int, float, float]
    intent: Intent | None  # None: a grouped operation
    process_set: object


@dataclass
class FakeEngine:
    """A world of two ranks whose other rank always sends zeros, summed."""

    spare_cores: bool = True
    failure: Exception | None = None
    submissions: list[Submission] = field(default_factory=list)
    waited: list[int] = field(default_factory=list)
    gathered: list[tuple[str, Tensor]] = field(default_factory=list)
    layouts: list[list[int]] = field(default_factory=list)  # each time the ranks agreed
    layout_elsewhere: int = 0

    def submit(
        self,
        tensors,
        names,
        op,
        prescale_factor,
        postscale_factor,
        *,
        intent,
        process_set,
        link_format,
        errors=(),
    ):
        operation = (op, prescale_factor, postscale_factor)
        self.submissions.append(Submission(names, tensors, operation, intent, process_set))
        return len(self.submissions)

    def submit_group(
        self,
        tensors,
        average,
        name,
        op,
        prescale,
        postscale,
        *,
        members,
        process_set,
        link_format,
        errors,
    ):
        assert average is None
        operation = (op, prescale, postscale)
        self.submissions.append(Submission([name], tensors, operation, None, process_set))
        return len(self.submissions)

    def submit_sparse(self, tensor, name, op, process_set):
        self.gathered.append((name, tensor))
        return lambda: tensor

    def agree(self, codes, *, name, op, process_set):
        assert name.endswith(".layouts")
        codes.clamp_(min=self.layout_elsewhere)
        self.layouts.append(codes.tolist())

    def synchronize(self, handle):
        assert 1 <= handle <= len(self.submissions)
        assert handle not in self.waited
        self.waited.append(handle)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    @property
    def names(self) -> list[list[str]]:
        return [submission.names for submission in self.submissions]

    @property
    def intents(self) -> list[Intent | None]:
        return [submission.intent for submission in self.submissions]


@pytest.fixture
def engine(monkeypatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr(adapter, "spare_cores", lambda: fake.spare_cores)
    monkeypatch.setattr(adapter, "allreduce_batch_async_", fake.submit)
    monkeypatch.setattr(adapter, "grouped_allreduce_async_", fake.submit_group)
    monkeypatch.setattr(adapter, "allreduce_", fake.agree)
    monkeypatch.setattr(adapter, "synchronize", fake.synchronize)
    monkeypatch.setattr(sparse_gradients, "sparse_allreduce_async", fake.submit_sparse)
    monkeypatch.setattr(optimizer, "size", lambda: 2)
    return fake


@pytest.fixture
def sparse_grad():
    """Makes a sparse gradient ``[4, 2]`` with ones in the given rows."""

    def make(*rows: int) -> Tensor:
        indices = torch.tensor([rows])
        ones = torch.ones(len(rows), 2)
        return torch.sparse_coo_tensor(indices, ones, (4, 2), check_invariants=True)

    return make
