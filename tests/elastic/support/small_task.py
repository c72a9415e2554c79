"""The training task of chaos runs: so few numbers that a batch takes a millisecond.

Everything follows from fixed seeds, so another process that takes the same batches gets the same
weights.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from types import ModuleType

import torch
from torch import Tensor

__all__ = [
    "BATCH_SIZE",
    "COMMIT_EVERY",
    "LOADING_S",
    "SAMPLE_COUNT",
    "digest",
    "leave_the_compiler_out",
    "loss_of",
    "make_model",
    "make_optimizer",
    "weights",
]

SAMPLE_COUNT = 211  # not divisible by a number of ranks, so every epoch ends with padding
BATCH_SIZE = 4
COMMIT_EVERY = 3
LOADING_S = 0.02  # between batches, like loading data; leaves the cores to starting workers
_FEATURES, _CLASSES = 16, 4


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(17)
    centers = torch.randn(_CLASSES, _FEATURES, generator=generator)
    labels = torch.arange(SAMPLE_COUNT) % _CLASSES
    noise = torch.randn(SAMPLE_COUNT, _FEATURES, generator=generator)
    return centers[labels] + noise, labels


_INPUTS, _LABELS = _data()


def leave_the_compiler_out() -> None:
    """Of a process that trains only: a worker starts in half the time.

    Optimizers import torch's compiler to tell it what it shall not compile.
    """
    stand_in = ModuleType("torch._dynamo")
    stand_in.disable = lambda function, *_, **__: function  # type: ignore[attr-defined]
    stand_in.graph_break = lambda: None  # type: ignore[attr-defined]
    sys.modules["torch._dynamo"] = torch._dynamo = stand_in


def make_model() -> torch.nn.Module:
    """The same weights in every process."""
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(_FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, _CLASSES)
    )


def make_optimizer(model: torch.nn.Module) -> torch.optim.SGD:
    """With momentum, which a later worker must get too."""
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def loss_of(model: torch.nn.Module, samples: Iterable[int]) -> Tensor:
    """The mean over these samples."""
    chosen = torch.tensor(list(samples))
    outputs = model(_INPUTS[chosen])
    return torch.nn.functional.cross_entropy(outputs, _LABELS[chosen])


def weights(model: torch.nn.Module) -> list[float]:
    """All values in one tensor."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *progress: int) -> str:
    """A hash of weights, momentum and ``progress``; a missing momentum counts as zero."""
    summed = hashlib.sha256(repr(progress).encode())
    for parameter in model.parameters():
        momentum = optimizer.state.get(parameter, {}).get("momentum_buffer")
        if momentum is None:
            momentum = torch.zeros_like(parameter)
        for tensor in (parameter.detach(), momentum):
            summed.update(tensor.contiguous().numpy().tobytes())
    return summed.hexdigest()[:16]
