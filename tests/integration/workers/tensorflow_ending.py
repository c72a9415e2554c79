"""Rank 1 ends or does not submit while rank 0 is in a collective; rank 0 prints its error."""

import os
import signal
import sys
import threading
import time

import tensorflow as tf
from endings import end_rank_1

import horovod.tensorflow as hvd
from horovod.core.world import engine


def interrupt_the_wait():
    while engine().pending_on(0) == 0:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)


hvd.init()
how = sys.argv[1]
tensor = tf.ones([1000])


@tf.function
def reduce(value):
    return hvd.allreduce(value, name="gradient")


for _ in range(20):
    tensor = reduce(tensor)

end_rank_1(hvd, how)

if how == "interrupt":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt_the_wait).start()
begin = time.monotonic()
try:
    value = hvd.allreduce(tensor, name="gradient") if how == "interrupt" else reduce(tensor)
    print("ended with", value, flush=True)
except (tf.errors.OpError, KeyboardInterrupt) as error:
    text = " ".join(str(error).split())
    print(f"{type(error).__name__} after {time.monotonic() - begin:.1f} s: {text}", flush=True)
os._exit(7)  # which ends rank 1
