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

from horovod.core.base.torch_plugin import NAME, register
from horovod.torch.distributed import backward, work
from horovod.torch.distributed.base_group import BaseGroup
from horovod.torch.distributed.creation import create
from horovod.torch.distributed.process_group import HorovodProcessGroup
from horovod.torch.distributed.reordered_group import ReorderedProcessGroup
from horovod.torch.uncompiled import keep_uncompiled

__all__ = ["NAME", "HorovodProcessGroup", "create", "register"]

keep_uncompiled(BaseGroup, HorovodProcessGroup, ReorderedProcessGroup)
keep_uncompiled(create, backward._end_all, work._value_of)
keep_uncompiled(work.HorovodWork, work.EngineWork, work.AllWorks, work.DoneWork)
register()
