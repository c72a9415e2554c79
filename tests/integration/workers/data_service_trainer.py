"""A training rank that reads 100 numbers, doubled by compute workers, and reports them.

    data_service_trainer.py CONFIGFILE send|turns|service

``send``: by ``send_to_data_service``; ``turns``: the same in turns, without an end; ``service``: by
``tf_data_service``. Rank 0 prints all ranks' numbers as JSON and ends the compute job.
"""

import json
import sys

import tensorflow as tf

import horovod.numpy as hvd
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service


def main(path: str, mode: str) -> None:
    hvd.init()
    config = TfDataServiceConfig.read(path, wait_for_file_creation=True)
    numbers = tf.data.Dataset.range(100).map(lambda number: 2 * number)
    rank, size = hvd.rank(), hvd.size()
    if mode == "send":
        own = read(numbers.send_to_data_service(config, rank, size, reuse_dataset=True))
    elif mode == "turns":
        endless = numbers.repeat().send_to_data_service(
            config, rank, size, reuse_dataset=True, round_robin=True
        )
        own = read(endless.take(10))
    else:
        with tf_data_service(config, rank) as address:
            own = read(
                numbers.apply(
                    tf.data.experimental.service.distribute(
                        "distributed_epoch", service=address, job_name="test"
                    )
                )
            )
    of_all_ranks = hvd.allgather_object(own)
    if rank == 0:
        print(json.dumps(of_all_ranks), flush=True)
        with config.compute_client() as client:
            client.shutdown()


def read(dataset: tf.data.Dataset) -> list[int]:
    return [int(number) for number in dataset]


if __name__ == "__main__":
    main(*sys.argv[1:])
