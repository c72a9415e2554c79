"""When NCCL is loaded, and which; the first word is one that a framework loads before."""

import ctypes
import sys
from pathlib import Path

from gpu_stand_ins import PretendGpu, exchange_capsule

import horovod.torch as hvd
from horovod import _native
from horovod.core.collectives import Collectives
from horovod.torch.adapter import _TorchAdapter


def mapped():
    """The files of NCCL in this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[-1] for line in lines if "libnccl" in line}


hvd.init()
gpu = PretendGpu(0)
assert mapped() == set(), "loaded by init"
for path in sys.argv[1:]:
    ctypes.CDLL(path)
ops = Collectives(_TorchAdapter(_native.TensorReader(exchange_capsule(gpu), lambda tensor: None)))
assert ops.allreduce_(gpu.tensor([1.0, 2.0]), op=hvd.Sum).tolist() == [1, 2]
(found,) = mapped()
print("NCCL is", found, flush=True)
hvd.shutdown()
