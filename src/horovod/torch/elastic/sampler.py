"""A sampler that goes on in the middle of an epoch, also after the number of ranks changed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from horovod.core.world import rank, size

__all__ = ["ElasticSampler"]


class EpochProgress:
    """How far all ranks together are in an epoch, and in which order its samples come.

    Derived classes give ``reset``, which adapts to the current world.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Start epoch ``epoch`` from its beginning."""
        self.epoch = epoch
        self.processed_num = 0

    def state_dict(self) -> dict[str, Any]:
        """Epoch and progress in it."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over epoch and progress, and split the rest anew."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Adapt to the current world."""
        raise NotImplementedError

    def _remaining(self) -> list[int]:
        """The indices that are not processed, in their order."""
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        return order[self.processed_num :]


class ElasticSampler(EpochProgress, Sampler[int]):
    """Splits what is left of an epoch evenly over all ranks.

    Put it into the ``TorchState``, call ``record_batch`` after each batch and ``set_epoch`` at the
    end of each epoch. Construct it after ``hvd.init()``. All ranks get equally many indices; if the
    data does not divide, some of the first ones come twice.

    Args:
        dataset: only its length is used; the same on every rank.
        shuffle: another order in each epoch, the same on every rank.
        seed: of the order; the same on every rank.

    Attributes:
        processed_num: indices of this epoch that all ranks together are done with.
        remaining_indices: the others in order, before padding and split.
        num_samples: indices per rank; ``total_size``: on all ranks, with padding.
        num_replicas, rank: the world at the last ``reset``.
    """

    def set_epoch(self, epoch: int) -> None:
        """Start epoch ``epoch`` from its beginning; call it at the END of the epoch before."""
        super().set_epoch(epoch)
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Count a batch of ``batch_size`` as done on every rank; takes effect at ``reset``.

        ``batch_idx`` is accepted because existing scripts pass it; not needed.
        """
        self.processed_num += batch_size * self.num_replicas

    def reset(self) -> None:
        """Split what is not processed over the ranks of the current world."""
        self.num_replicas = size()
        self.rank = rank()
        self.remaining_indices = self._remaining()
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        # With fewer indices than ranks the padding goes around several times.
        padded = itertools.islice(itertools.cycle(self.remaining_indices), self.total_size)
        return iter(list(padded)[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
