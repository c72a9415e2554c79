"""Batches in proportion to the measured speed of each rank: ``BalancedSampler``.

All ranks know how many samples each of them takes, so the sizes of a step always add up to the same
number. A rank that is slow, since its machine is older or busy with other work, gets fewer samples,
and ranks reach the reduction at the same time.
"""

from __future__ import annotations

import itertools
import reprlib
import sys
import time
import warnings
from collections.abc import Iterator, Sequence, Sized
from numbers import Integral

import torch
from torch.utils.data import BatchSampler, Sampler

from horovod.core import world
from horovod.torch import adapter
from horovod.torch.elastic.sampler import EpochProgress

# What a ``DataLoader`` puts around its ``sampler``, unless ``batch_size`` is None.
_JOINING = BatchSampler.__iter__.__code__
_FIRST_STEPS = 2  # they allocate and compile, and are not measured


def split_by_speed(speeds: Sequence[float], count: int) -> list[int]:
    """``count`` samples in parts that are proportional to ``speeds``, each at least 1.

    Args:
        speeds: of the ranks, in any unit; those that are not positive count as the mean.
        count: at least as many as there are ranks.
    """
    known = [speed for speed in speeds if speed > 0]
    mean = sum(known) / len(known) if known else 1.0
    weights = [speed if speed > 0 else mean for speed in speeds]
    left = count - len(weights)
    wanted = [left * weight / sum(weights) for weight in weights]
    parts = [1 + int(part) for part in wanted]
    by_rest = sorted(range(len(parts)), key=lambda rank: int(wanted[rank]) - wanted[rank])
    for rank in by_rest[: count - sum(parts)]:
        parts[rank] += 1
    return parts


class BalancedSampler(EpochProgress, Sampler[list[int]]):
    """Batches of a dataset for this rank, larger where a rank is fast.

    Give it to a ``DataLoader`` as ``batch_sampler``, and multiply the mean loss of a batch by
    ``weight``, once in each step. Then the average of the gradients over ranks is exactly that of
    the mean over all samples of the step::

        sampler = hvd.BalancedSampler(data, batch_size=32)
        for images, labels in DataLoader(data, batch_sampler=sampler):
            loss = cross_entropy(model(images), labels) * sampler.weight(len(images))

    Construct it after ``hvd.init()``. All ranks take equally many batches. Iterating communicates
    every few batches, so all ranks use equally many workers of the loader. The last step of an
    epoch is filled up with samples of its beginning. After an epoch the next one begins by itself,
    or another one with ``set_epoch``. It can be kept in a ``TorchState``: after a change of the
    world the ranks split what is left of the epoch; there call ``set_epoch`` at the END of each
    epoch.

    Args:
        dataset: only its length is used; the same on every rank.
        batch_size: the mean number of samples of a rank in a step; the same on every rank.
        shuffle: another order in each epoch, the same on every rank.
        seed: of the order; the same on every rank.
        every: after how many batches ranks compare their speeds; the same on every rank.

    Attributes:
        sizes: how many samples of a step each rank takes now.
        step_size: how many all ranks take.

    Raises:
        ValueError: ``batch_size`` or ``every`` is no whole number, or less than 1. Later, from a
            loader: it has this as ``sampler``, and would make batches of batches.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int = 32,
        shuffle: bool = True,
        seed: int = 0,
        every: int = 5,
    ) -> None:
        for option, value in (("batch_size", batch_size), ("every", every)):
            if not isinstance(value, Integral) or value < 1:
                raise ValueError(
                    f"BalancedSampler: {option} must be a whole number of at least 1, found "
                    f"{reprlib.repr(value)}"
                )
        self.batch_size = batch_size
        self.every = every
        super().__init__(dataset, shuffle, seed)

    def reset(self) -> None:
        """Begin with equal sizes in the current world."""
        self._rank = world.rank()
        self.step_size = self.batch_size * world.size()
        self.sizes = [self.batch_size] * world.size()
        self._speed = _Speed()
        self._taken = 0
        # Calls of weight(). None before the next epoch: a loader may have batches from earlier.
        self._weighted: int | None = None
        self._has_ended = False  # all batches of an epoch were taken

    def weight(self, count: int) -> float:
        """What the mean loss of this rank's ``count`` samples counts in the mean over ranks.

        Call it once in each step, with the size of the batch: it also measures.
        """
        self._count_call()
        self._speed.note(count)
        self.processed_num += self.step_size
        return count * len(self.sizes) / self.step_size

    def __len__(self) -> int:
        """Batches that are left of the epoch, or of the next one if none is left."""
        left = max(len(self.dataset) - self.processed_num, 0) or len(self.dataset)
        return -(-left // self.step_size)

    def __iter__(self) -> Iterator[list[int]]:
        if sys._getframe(1).f_code is _JOINING:
            raise ValueError(
                "BalancedSampler: each of its items is a whole batch, found a BatchSampler that "
                "makes batches of them; use DataLoader(data, batch_sampler=sampler), without "
                "sampler= and batch_size="
            )
        return self._batches()

    def _batches(self) -> Iterator[list[int]]:
        if self.processed_num >= len(self.dataset):
            self.set_epoch(self.epoch + 1)
        if self._has_ended and not self._speed.has_begun:
            warnings.warn(
                "BalancedSampler: an epoch has ended and weight() was never called, so its samples "
                "come again in the same order, and ranks take equally many; call "
                "sampler.weight(len(batch)) once in each step",
                UserWarning,
                stacklevel=2,
            )
        self._has_ended = False
        if self._weighted is None:
            self._weighted = self._taken
        left = itertools.cycle(self._remaining())
        for _ in range(len(self)):
            if self._taken and self._taken % self.every == 0:
                self._compare()
            self._taken += 1
            step = list(itertools.islice(left, self.step_size))
            begin = sum(self.sizes[: self._rank])
            yield step[begin : begin + self.sizes[self._rank]]
        self._has_ended = True

    def _count_call(self) -> None:
        """Count a call of weight(). A loader takes batches ahead, so too few tell nothing."""
        if self._weighted is None:
            return
        self._weighted += 1
        if self._weighted > self._taken:
            warnings.warn(
                f"BalancedSampler: call {self._weighted} of weight(), but only {self._taken} "
                "batches so far: the measured speed and the progress in the epoch are wrong; call "
                "sampler.weight(len(batch)) once in each step, and keep its result",
                UserWarning,
                stacklevel=3,
            )

    def _compare(self) -> None:
        """Adapt the sizes to the speeds of all ranks; blocks until all are here."""
        own = torch.tensor([self._speed.take()], dtype=torch.float64, device="cpu")
        speeds = adapter.allgather(own, "balanced_sampler.speeds").tolist()
        if all(speed > 0 for speed in speeds):
            self.sizes = split_by_speed(speeds, self.step_size)


class _Speed:
    """Samples per second of this rank, without the time in which it waits for results."""

    def __init__(self) -> None:
        self._steps = 0
        self._begin = 0.0
        self._count = 0  # samples of the step under way
        self._samples = 0.0
        self._busy_s = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether there was a step."""
        return self._steps > 0

    def note(self, count: int) -> None:
        """A step of ``count`` samples is under way, and the last one has ended."""
        now = time.perf_counter() - world.metrics()["blocked_seconds"]
        if self._steps >= _FIRST_STEPS:
            self._samples += self._count
            self._busy_s += now - self._begin
        self._begin, self._count = now, count
        self._steps += 1

    def take(self) -> float:
        """The speed since the last call, and half as much before it; 0 if it is not known."""
        speed = self._samples / self._busy_s if self._busy_s > 0 else 0.0
        self._samples, self._busy_s = self._samples / 2, self._busy_s / 2
        return speed
