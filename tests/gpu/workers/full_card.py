"""Collectives on a card that torch's cache fills: they end with an error of one rank, or at all."""

import torch

import horovod.torch as hvd

hvd.init()
torch.cuda.set_device(0)
rank, size = hvd.rank(), hvd.size()
rows = torch.ones(1 << 28, device="cuda")  # 1 GB
hvd.allreduce_(torch.ones(1, device="cuda"))
hvd.barrier()
if rank == 0:
    free, _ = torch.cuda.mem_get_info()
    filled = torch.empty(free - (512 << 20), dtype=torch.uint8, device="cuda")
    del filled  # free again for torch, but in its cache
hvd.barrier()
print("card full:", [number >> 20 for number in torch.cuda.mem_get_info()], "MB", flush=True)
try:
    gathered = hvd.allgather(rows)
    torch.cuda.synchronize()
    print("gathered", gathered.shape, bool((gathered == 1).all()), flush=True)
except Exception as error:
    print("allgather:", type(error).__name__, error, flush=True)
values = hvd.allreduce(torch.ones(4, device="cuda"), op=hvd.Sum)
print("and afterwards:", values.tolist(), flush=True)
hvd.shutdown()
