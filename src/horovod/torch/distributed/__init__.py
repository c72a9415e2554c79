"""``torch.distributed`` on Horovod's engine: ``init_process_group("horovod")``.

    import torch.distributed as dist
    dist.init_process_group("horovod")

A backend of ``torch.distributed`` for tensors on CPUs and CUDA GPUs, for
``DistributedDataParallel``, FSDP2, DTensor, and libraries on top of them. torch 2.5 and later know
it without an import of this module. The processes may be started by ``torchrun``, ``horovodrun`` or
anything else from which ``init_process_group`` learns its world. ``horovod.torch`` in the same
process uses the same engine. docs/torch-distributed.md says what it can do and how it is launched.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch.distributed import ProcessGroup, distributed_c10d

from horovod.core.base.torch_plugin import NAME, register
from horovod.torch.distributed import backward, work
from horovod.torch.distributed.base_group import BaseGroup
from horovod.torch.distributed.members import Members, seconds
from horovod.torch.distributed.process_group import HorovodProcessGroup
from horovod.torch.distributed.reordered_group import ReorderedProcessGroup
from horovod.torch.distributed.world import join_world
from horovod.torch.uncompiled import keep_uncompiled

__all__ = ["NAME", "HorovodProcessGroup", "create", "register"]


def create(options: Any) -> HorovodProcessGroup:
    """A process group for ``torch.distributed``, which calls this on all ranks of the group.

    Args:
        options: torch's ``_DistributedBackendOptions``; without ranks: the default group.

    Raises:
        ValueError: see ``world.join_world`` and ``Members.of_group``.
    """
    if hasattr(ProcessGroup, "shutdown"):
        return _new_group(options)
    _end_destroyed()
    _made.append(_new_group(options))
    return _made[-1]


# In an older torch, whose destroy_process_group only forgets a group: what was not ended yet.
_made: list[HorovodProcessGroup] = []


def _end_destroyed() -> None:
    """End the groups that torch has forgotten; the default group, made first, ends last."""
    known: Collection[object] = distributed_c10d._world.pg_map
    for group in [group for group in reversed(_made) if group not in known]:
        _made.remove(group)
        group.shutdown()


def _new_group(options: Any) -> HorovodProcessGroup:
    store, timeout_s = options.store, seconds(options.timeout)
    ranks, name = list(options.global_ranks_in_group), options.group_id
    if ranks:
        members = Members.of_group(store, name, ranks, timeout_s)
        is_rising = sorted(ranks) == ranks
        return (HorovodProcessGroup if is_rising else ReorderedProcessGroup)(members, timeout_s)
    owns_world = join_world(store, options.group_rank, options.group_size, timeout_s)
    return HorovodProcessGroup(Members.of_world(name), timeout_s, owns_world)


keep_uncompiled(BaseGroup, HorovodProcessGroup, ReorderedProcessGroup)
keep_uncompiled(create, backward._end_all, work._value_of)
keep_uncompiled(work.HorovodWork, work.EngineWork, work.AllWorks, work.DoneWork)
register()
