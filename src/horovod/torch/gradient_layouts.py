"""Which gradients are sparse: agreed by all ranks, because all have to run the same collectives.

A rank whose parameter got no gradient cannot know that it is sparse elsewhere. So the ranks agree
once per parameter, in the first step in which some rank has a gradient for it: the layouts' codes
are reduced by Max. Dense wins, because a dense gradient may have left before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from horovod.core.operations import Max
from horovod.core.process_sets import ProcessSet
from horovod.core.world import generation
from horovod.torch import adapter

# Codes of a layout; the codes between are numbers of sparse dimensions.
_UNSEEN = 0
_DENSE = 255


class GradientLayouts:
    """What the ranks agreed about each parameter's gradient, by index.

    Args:
        process_set: the ranks that agree; all list the same parameters in the same order.
        is_sparse: the optimizer accepts sparse gradients only, so there is nothing to ask.
    """

    def __init__(self, process_set: ProcessSet, is_sparse: bool) -> None:
        self._process_set = process_set
        self._first = 1 if is_sparse else _UNSEEN
        self._codes: list[int] = []
        self._unseen: list[int] = []  # indices that are open
        self._generation = generation()
        self.sparse: dict[int, int] = {}  # number of sparse dimensions by index
        self.are_dense = True  # whether all are known to be dense

    def add(self, count: int) -> None:
        """So many parameters more."""
        self._codes.extend([self._first] * count)
        self._note_codes()

    def cover(self, indices: Iterable[int]) -> bool:
        """Whether the ranks of this world agreed about all these parameters."""
        codes = self._codes
        return self._generation == generation() and all(codes[index] for index in indices)

    def agree(self, params: Sequence[Tensor], name: str) -> None:
        """Ask the other ranks about those that are open; blocks until all of them ask.

        In a new world all are open again: its ranks need not have been in the former one.
        """
        if self._generation != generation():
            self._generation = generation()
            self._codes = [self._first] * len(params)
            self._note_codes()
        unseen = self._unseen
        if not unseen:
            return
        codes = torch.tensor([_code_of(params[index].grad) for index in unseen], dtype=torch.uint8)
        adapter.allreduce_(codes, name=name, op=Max, process_set=self._process_set)
        for index, code in zip(unseen, codes.tolist(), strict=True):
            self._codes[index] = code
        self._note_codes()

    def _note_codes(self) -> None:
        codes = list(enumerate(self._codes))
        self._unseen = [index for index, code in codes if code == _UNSEEN]
        self.sparse = {index: code for index, code in codes if _UNSEEN < code < _DENSE}
        self.are_dense = all(code == _DENSE for code in self._codes)


def _code_of(grad: Tensor | None) -> int:
    if grad is None:
        return _UNSEEN
    return grad.sparse_dim() if grad.layout is torch.sparse_coo else _DENSE
