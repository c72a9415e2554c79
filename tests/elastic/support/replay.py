"""The same batches again, in one process without faults."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from small_task import loss_of, make_model, make_optimizer, weights
from verdicts import Batch

__all__ = ["differences_to_replay"]

_TOLERANCE = 1e-4


def differences_to_replay(batches: Sequence[Batch], final: Sequence[float]) -> list[str]:
    """Differences of losses or final weights from undisturbed training with these batches."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with so little work, several threads would only wait for each other
    try:
        return _replay(batches, final)
    finally:
        torch.set_num_threads(threads)


def _replay(batches: Sequence[Batch], final: Sequence[float]) -> list[str]:
    problems = []
    model = make_model()
    optimizer = make_optimizer(model)
    for batch in batches:
        optimizer.zero_grad()
        losses = [loss_of(model, share) for share in batch.samples]
        for rank, (expected, found) in enumerate(zip(losses, batch.losses, strict=True)):
            if found is not None and not _is_close(found, expected.item()):
                text = f"rank {rank} had loss {found}, undisturbed {expected.item()}"
                problems.append(f"batch {batch.step} of epoch {batch.epoch}: {text}")
        torch.stack(losses).mean().backward()
        optimizer.step()
    expected = weights(model)
    worst = max(abs(a - b) for a, b in zip(expected, final, strict=True))
    if not worst < _TOLERANCE:
        problems.append(f"final weights are up to {worst} away from undisturbed ones")
    return problems


def _is_close(found: float, expected: float) -> bool:
    return math.isclose(found, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
