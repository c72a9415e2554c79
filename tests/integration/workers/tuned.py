"""Makes steps until autotuning has written its result; sums must stay the same."""

import sys
from pathlib import Path

import numpy as np

import horovod.numpy as hvd

hvd.init()
log = Path(sys.argv[1])
rng = np.random.default_rng(hvd.rank())
given = [rng.normal(size=size).astype(np.float32) for size in (30, 20_000, 300_000)]
expected = [np.array(total) for total in hvd.grouped_allreduce(given, name="first", op=hvd.Sum)]
is_over = False
while not is_over:
    for _ in range(20):
        handles = [
            hvd.allreduce_async(tensor, name=f"t{i}", op=hvd.Sum) for i, tensor in enumerate(given)
        ]
        for handle, total in zip(handles, expected, strict=True):
            assert np.array_equal(hvd.synchronize(handle), total)
    said = hvd.rank() == 0 and log.with_name(f"{log.name}.yaml").exists()
    is_over = bool(hvd.broadcast(np.array([said]), root_rank=0, name="is_over")[0])
print("tuned", flush=True)
