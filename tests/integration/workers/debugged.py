"""Faults for the debug mode: prints each error; operations continue after it."""

import numpy as np

import horovod.numpy as hvd

hvd.init()
rank = hvd.rank()


def submit_uneven():
    return hvd.allreduce_async(np.ones(3 + rank), name="uneven", op=hvd.Sum)


def told(error):
    for line in str(error).splitlines():
        print(line)


for _ in range(3):
    hvd.allreduce(np.ones(100), name="fine")
handle = submit_uneven()
try:
    hvd.synchronize(handle)
except hvd.HorovodInternalError as error:
    told(error)
gradient = np.ones((2, 3), np.float32)
if rank == 1:
    gradient[1, 2] = np.nan
try:
    hvd.allreduce_(gradient, name="gradient")
except hvd.HorovodInternalError as error:
    told(error)
assert hvd.allreduce(np.ones(3), name="after", op=hvd.Sum)[0] == hvd.size()
hvd.shutdown()
