"""A Gaussian process over a grid, as a sampler for optuna; needs optuna.

Optuna's own needs PyTorch, and learns the noise from more samples than there are here; this one
takes it as given. Scores are scaled to a variance of one, points to a cube with sides of one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from optuna import Study
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

__all__ = ["GaussianProcess", "expected_improvement"]

Array = npt.NDArray[np.float64]
_LENGTH = 0.5  # over which a function of the cube changes much
_LEAST_NOISE = 1e-6


class GaussianProcess(BaseSampler):
    """Proposes the point of the grid from which most is to be expected, each one once."""

    def __init__(self, levels: Mapping[str, int], noise: float) -> None:
        """``levels``: how many values each name has, more than one; ``noise``: variance."""
        self._space = {name: IntDistribution(0, count - 1) for name, count in levels.items()}
        self._noise = noise
        self._grid = list(itertools.product(*(range(count) for count in levels.values())))
        self._scale = np.array([count - 1 for count in levels.values()], dtype=np.float64)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """See ``BaseSampler``."""
        return dict(self._space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """See ``BaseSampler``."""
        told = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        seen = [tuple(one.params[name] for name in self._space) for one in told]
        scores = [one.value for one in told if one.value is not None]
        tried = set(seen)
        left = [point for point in self._grid if point not in tried] or self._grid
        gains = expected_improvement(self._in_cube(seen), scores, self._in_cube(left), self._noise)
        return dict(zip(self._space, left[int(np.argmax(gains))], strict=True))

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Never asked for: all parameters are sampled together."""
        raise NotImplementedError(f"{param_name} is not in the search space")

    def _in_cube(self, points: Sequence[tuple[int, ...]]) -> Array:
        return np.array(points, dtype=np.float64).reshape(len(points), -1) / self._scale


def expected_improvement(
    seen: Array, scores: Sequence[float], points: Array, noise: float
) -> Array:
    """For each of ``points``, by how much it is expected to exceed the best one ``seen``."""
    values = np.array(scores)
    values = (values - values.mean()) / (values.std() or 1.0)
    across = _covariance(points, seen)
    among = _covariance(seen, seen)
    inverse = np.linalg.inv(among + max(noise, _LEAST_NOISE) * np.eye(len(values)))
    weights = inverse @ values
    mean = across @ weights
    deviation = np.sqrt(np.maximum(1.0 - ((across @ inverse) * across).sum(axis=1), 1e-12))
    ahead = mean - (among @ weights).max()
    ratio = ahead / deviation
    density = np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    below = np.array([math.erfc(-one / math.sqrt(2)) / 2 for one in ratio])
    gains: Array = ahead * below + deviation * density
    return gains


def _covariance(one: Array, other: Array) -> Array:
    """Matern's, with a smoothness of 5/2."""
    squares = ((one[:, None, :] - other[None, :, :]) ** 2).sum(axis=2)
    distance = np.sqrt(5 * squares) / _LENGTH
    covariance: Array = (1 + distance + distance**2 / 3) * np.exp(-distance)
    return covariance
