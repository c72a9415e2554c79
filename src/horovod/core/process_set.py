"""``ProcessSet``, and the registry of the world that this process is in; see ``process_sets``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from horovod.core.base.mpi_library import is_communicator

if TYPE_CHECKING:
    from horovod.core.process_sets import Registry


class ProcessSet:
    """A set of ranks; usable once registered by ``init`` or ``add_process_set``.

    Args:
        ranks_or_comm: ranks of the world, in any order; or an mpi4py communicator, for ``init``
            with a communicator: its processes. Different ranks may give different communicators,
            as those that ``Split`` makes; then each of them becomes a process set.

    Attributes:
        process_set_id: number of the registered set, the same on all ranks; None before and after.
        ranks: its ranks in rising order; a *set rank* is a position in it. None for a communicator
            until it is registered.
        mpi_comm: the communicator that was given, or None.

    Raises:
        ValueError: the argument is neither.
    """

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        is_comm = is_communicator(ranks_or_comm)
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = None if is_comm else _rank_list(ranks_or_comm)
        self.mpi_comm: Any = ranks_or_comm if is_comm else None

    def size(self) -> int | None:
        """Number of its ranks; None while it is not registered."""
        if self.process_set_id is None:
            return None
        return len(current_registry().members(self.process_set_id))

    def rank(self) -> int | None:
        """This process's position in the set; None while it is not registered.

        Raises:
            ValueError: this process is not a member, or Horovod is not initialized.
        """
        if self.process_set_id is None:
            return None
        registry = current_registry()
        members = registry.members(self.process_set_id)
        if registry.rank not in members:
            raise ValueError(
                f"rank {registry.rank} is not part of provided process set {self.process_set_id} "
                f"(ranks {members})"
            )
        return members.index(registry.rank)

    def included(self) -> bool | None:
        """Whether this process is a member; None while the ranks are unknown.

        Raises:
            ValueError: Horovod is not initialized.
        """
        return None if self.ranks is None else current_registry().rank in self.ranks

    def __repr__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )


_registry: Registry | None = None


def current_registry() -> Registry:
    """The process sets of this world; ``ValueError`` before ``init``."""
    if _registry is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _registry


def replace_registry(registry: Registry | None) -> Registry | None:
    """Make this the registry of the world; returns the one before."""
    global _registry
    before, _registry = _registry, registry
    return before


def _rank_list(ranks: Any) -> list[int]:
    if not isinstance(ranks, Iterable) or isinstance(ranks, (str, bytes)):
        raise ValueError(f"ProcessSet: expected a list of ranks, found {ranks!r}")
    found = list(ranks)
    if not all(hasattr(rank, "__index__") and not isinstance(rank, bool) for rank in found):
        raise ValueError(f"ProcessSet: expected a list of ranks, found {found!r}")
    return sorted(int(rank) for rank in found)


# All ranks. Always registered; its ranks are known between ``init`` and ``shutdown``.
global_process_set = ProcessSet(())
global_process_set.process_set_id, global_process_set.ranks = 0, None
