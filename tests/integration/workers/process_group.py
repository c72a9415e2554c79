"""Makes a process group of torch.distributed, and adds up ones.

process_group.py NAME_OF_RANK NAME_OF_SIZE   the variables that MPI or Slurm has set
process_group.py URL                         where ranks meet that ``hvd`` knows
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

if sys.argv[2:]:
    os.environ["RANK"], os.environ["WORLD_SIZE"] = (os.environ[name] for name in sys.argv[1:])
    dist.init_process_group("horovod")
else:
    import horovod.torch as hvd

    hvd.init()
    dist.init_process_group(
        "horovod", init_method=sys.argv[1], rank=hvd.rank(), world_size=hvd.size()
    )
dist.all_reduce(total := torch.ones(1))
group = dist.new_group([0, 1])
dist.all_reduce(total, group=group)
# At once: ranks share the output.
sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item():.0f}\n")
dist.destroy_process_group()
