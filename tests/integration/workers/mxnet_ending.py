"""Rank 1 ends while rank 0 waits for it in MXNet's engine; rank 0 prints its error."""

import os
import sys
import time
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import mxnet as mx

from endings import end_rank_1

import horovod.mxnet as hvd

hvd.init()
hvd.allreduce(mx.nd.ones(1000), name="first").wait_to_read()
end_rank_1(hvd, sys.argv[1])
start = time.monotonic()
results = [hvd.allreduce(mx.nd.ones(1000), name="last"), hvd.allgather(mx.nd.ones(3), name="last")]
texts = []
for result in results:
    try:
        result.asnumpy()
    except mx.MXNetError as error:
        texts.append(next(line for line in str(error).splitlines() if "Horovod" in line))
usable = (mx.nd.ones(1) + 1).asnumpy().tolist() == [2.0]
duration = time.monotonic() - start
print(f"usable {usable} after {duration:.1f} s, {len(texts)} errors: {texts}", flush=True)
os._exit(7)  # which ends rank 1
