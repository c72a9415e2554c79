"""What ``torch.distributed`` calls to make a process group on the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod.torch.distributed.members import Members, seconds
from horovod.torch.distributed.process_group import HorovodProcessGroup
from horovod.torch.distributed.reordered_group import ReorderedProcessGroup
from horovod.torch.distributed.world import join_world

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]


def create(options: Any) -> HorovodProcessGroup:
    """A process group for ``torch.distributed``, which calls this on all ranks of the group.

    Args:
        options: torch's ``_DistributedBackendOptions``; without ranks: the default group.

    Raises:
        ValueError: see ``world.join_world`` and ``Members.of_group``.
    """
    store: Store = options.store
    timeout_s = seconds(options.timeout)
    ranks, name = list(options.global_ranks_in_group), options.group_id
    if ranks:
        members = Members.of_group(store, name, ranks, timeout_s)
        is_rising = sorted(ranks) == ranks
        return (HorovodProcessGroup if is_rising else ReorderedProcessGroup)(members, timeout_s)
    owns_world = join_world(store, options.group_rank, options.group_size, timeout_s)
    return HorovodProcessGroup(Members.of_world(name), timeout_s, owns_world)
