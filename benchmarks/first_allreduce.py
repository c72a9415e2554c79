"""The script that ``startup.py`` starts: import torch, join, sum 4 bytes, say when, exit.

    python first_allreduce.py horovod|gloo|nothing

The clock is the system's monotonic one, which the driver reads too.
"""

import sys
import time

import torch


def main(library: str) -> None:
    tensor = torch.ones(1)
    if library == "horovod":
        import horovod.torch as hvd

        hvd.init()
        hvd.allreduce_(tensor, name="first", op=hvd.Sum)
        expected = hvd.size()
    elif library == "gloo":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.all_reduce(tensor)
        expected = dist.get_world_size()
    else:
        expected = 1
    done = time.monotonic()
    if tensor.item() != expected:
        sys.exit(f"the sum is {tensor.item()}, not {expected}")
    print(f"done at {done:.6f}", flush=True)
    if library == "gloo":
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
