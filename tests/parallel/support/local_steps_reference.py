"""Local steps of all ranks in one process, in NumPy: what ``DiLoCo`` has to come to.

Each rank makes steps of SGD on half the squared distance to targets of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

INNER_LR = 0.1
SHAPES = ((3, 2), (4,), (), (2, 2, 2), (5,))


def initial(dtype=np.float64):
    """The parameters of all ranks before the first step."""
    random = np.random.default_rng(1)
    return [np.asarray(random.normal(size=shape), dtype) for shape in SHAPES]


def target(rank: int, step: int, index: int):
    """What a parameter is drawn to in a step."""
    return np.random.default_rng([rank, step, index]).normal(size=SHAPES[index])


@dataclass
class Reference:
    """The ranks' parameters; ``parts``: the indices of each fragment's, ``firsts``: when each is
    sent first."""

    ranks: int
    parts: Sequence[Sequence[int]]
    firsts: Sequence[int]
    sync_every: int
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    nesterov: bool = True
    overlap: int = 0
    merge_weight: float = 1.0
    step: int = 0
    under_way: dict = field(default_factory=dict)

    def __post_init__(self):
        self.own = [initial() for _ in range(self.ranks)]
        self.agreed = initial()
        self.momentum = [np.zeros(shape) for shape in SHAPES]

    def run(self, steps: int):
        """Make so many steps; the parameters of all ranks."""
        for _ in range(steps):
            self.step += 1
            for rank, params in enumerate(self.own):
                for index, param in enumerate(params):
                    params[index] = param - INNER_LR * (param - target(rank, self.step, index))
            self._exchange()
        return self.own

    def finish(self):
        """Agree on what has changed; the parameters of all ranks."""
        for _, changes in self.under_way.values():
            self._merge(changes, self.merge_weight)
        self.under_way.clear()
        own, agreed = self.own[0], self.agreed
        late = [i for i in range(len(SHAPES)) if not np.array_equal(own[i], agreed[i])]
        self._merge({i: self._mean_change(i) for i in late}, 1.0)
        return self.own

    def _exchange(self):
        for number, (part, first) in enumerate(zip(self.parts, self.firsts, strict=True)):
            if (self.step - first) % self.sync_every == 0:
                changes = {i: self._mean_change(i) for i in part}
                self.under_way[number] = (self.step + self.overlap, changes)
        for number, (due, changes) in list(self.under_way.items()):
            if due == self.step:
                del self.under_way[number]
                self._merge(changes, self.merge_weight)

    def _mean_change(self, index: int):
        return np.mean([self.agreed[index] - params[index] for params in self.own], axis=0)

    def _merge(self, changes, weight: float):
        for index, change in changes.items():
            momentum = self.momentum[index] = self.outer_momentum * self.momentum[index] + change
            step = change + self.outer_momentum * momentum if self.nesterov else momentum
            self.agreed[index] = self.agreed[index] - self.outer_lr * step
            for params in self.own:
                params[index] = weight * self.agreed[index] + (1 - weight) * params[index]


# Arguments of ``DiLoCo``, and the fragments that they make of SHAPES.
ALL = [range(len(SHAPES))]
CASES = {
    "plain": ({"sync_every": 3}, ALL, [3]),
    "every step": ({"sync_every": 1, "outer_lr": 0.3}, ALL, [1]),
    "no nesterov": ({"sync_every": 2, "nesterov": False, "outer_lr": 0.5}, ALL, [2]),
    "no momentum": ({"sync_every": 4, "outer_momentum": 0.0}, ALL, [4]),
    "overlap": ({"sync_every": 5, "overlap": 2, "merge_weight": 1.0}, ALL, [5]),
    "fragments": ({"sync_every": 4, "fragments": 2}, [[0, 1, 2], [3, 4]], [2, 4]),
    "streaming": (
        {"sync_every": 5, "fragments": 3, "overlap": 3, "merge_weight": 0.6},
        [[0, 1], [2, 3], [4]],
        [1, 3, 5],
    ),
}


def reference(case: str, ranks: int) -> Reference:
    """The reference of one of ``CASES``."""
    arguments, parts, firsts = CASES[case]
    options = {key: value for key, value in arguments.items() if key != "fragments"}
    return Reference(ranks, parts, firsts, **options)
