"""What the user allows an elastic job: how many workers, how often, how long."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]

_MIN_COOLDOWN_S = 1.0
_MAX_COOLDOWN_S = 3600.0


@dataclass(frozen=True)
class Limits:
    """``np`` slots are needed before anything starts, ``min_np`` workers for a world.

    A world has at most ``max_np``; as many again are kept waiting as spares. ``reset_limit`` is
    the number of worlds after the first, ``elastic_timeout_s`` how long the job may be without one.
    ``cooldown`` gives the least and the longest time for which a host is blacklisted; without it
    that is for good. A newcomer that needs longer than ``start_patience_s`` is not waited for.

    Raises:
        ValueError: these contradict each other, or a value is out of its range.
    """

    np: int
    min_np: int
    max_np: int | None
    reset_limit: int | None
    elastic_timeout_s: float
    cooldown: tuple[float, float] | None
    start_patience_s: float = 30.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_np <= self.np:
            raise ValueError(f"min-np is {self.min_np}; expected 1 to {self.np}, which is np")
        if self.max_np is not None and self.max_np < self.np:
            raise ValueError(f"max-np is {self.max_np}; expected {self.np}, which is np, or more")
        if self.reset_limit is not None and self.reset_limit < 0:
            raise ValueError(f"the reset limit is {self.reset_limit}; expected 0 or more")
        if self.elastic_timeout_s < 0:
            raise ValueError(f"the elastic timeout is {self.elastic_timeout_s}; expected 0 or more")
        if self.cooldown is not None:
            _check_cooldown(*self.cooldown)

    @property
    def most_workers(self) -> int | None:
        """How many processes are kept at a time, spares included."""
        return None if self.max_np is None else 2 * self.max_np


def _check_cooldown(lower: float, upper: float) -> None:
    if not _MIN_COOLDOWN_S <= lower <= upper <= _MAX_COOLDOWN_S:
        raise ValueError(
            f"the blacklist cooldown range is {lower:g} to {upper:g} seconds; expected at least "
            f"{_MIN_COOLDOWN_S:g}, at most {_MAX_COOLDOWN_S:g}, the lesser first"
        )
