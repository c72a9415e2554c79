"""TorchEstimator on Parquet files against the same training on tensors in memory.

scikit-learn's digits a hundred times, 179 700 rows of 64 numbers; two processes of
``horovod.spark.run``, one compute thread each, batches of 64, the same small network and optimizer.
The estimator reads the Parquet files that Spark has written, shuffles, and writes its history and
checkpoints; its peer takes batches from tensors in memory. Both train in turns; a figure is the
median over epochs, without the first epoch of each job.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from command_line import make_parser
from pyspark.sql import SparkSession
from report import OURS, Bar, Table, print_report
from sklearn.datasets import load_digits

from horovod.spark.common.backend import SparkBackend
from horovod.spark.common.store import Store
from horovod.spark.common.util import prepare_data
from horovod.spark.torch import TorchEstimator

_MEMORY = "tensors in memory"
_PROCESSES = 2
_BATCH = 64
_COPIES, _COPIES_QUICK = 100, 20


def main() -> int:
    args = _parse_arguments()
    copies = _COPIES_QUICK if args.quick else _COPIES
    row = f"digits x {copies}"
    table = Table("training on 2 processes: rows per second", [OURS, _MEMORY], "{:.4g}".format)
    table.is_more_better = True
    table.bars = [Bar(row, _MEMORY, 0.8)]
    found: dict[str, list[float]] = {OURS: [], _MEMORY: []}
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        images, labels = _digits(copies)
        spark = _session()
        try:
            frame = spark.createDataFrame(_arrow(images, labels))
            store = Store.create(folder)
            with prepare_data(_PROCESSES, store, frame, ["label"], ["features"]) as number:
                np.savez(f"{folder}/rows.npz", images=images, labels=labels)
                for _ in range(args.rounds):
                    for name, seconds in (
                        (OURS, _fit(store, number, folder, args.epochs)),
                        (_MEMORY, _script(folder, args.epochs)),
                    ):
                        found[name] += [len(labels) / epoch for epoch in seconds]
        finally:
            spark.stop()
    table.rows[row] = found
    return print_report([table], args.json)


def _fit(store: Store, number: int, folder: str, epochs: int) -> list[float]:
    """Seconds of each epoch of the estimator."""
    print("measuring the estimator", file=sys.stderr, flush=True)
    model, optimizer = _network()
    path = Path(folder, "stamps")
    path.write_text("")

    def stamp(_: Any) -> None:
        with path.open("a") as file:
            file.write(f"{time.perf_counter()}\n")

    estimator = TorchEstimator(
        backend=_backend(),
        store=store,
        model=model,
        optimizer=optimizer,
        loss=torch.nn.CrossEntropyLoss(),
        feature_cols=["features"],
        label_cols=["label"],
        batch_size=_BATCH,
        epochs=epochs + 1,
        callbacks=[stamp],
        verbose=0,
    )
    estimator.fit_on_parquet(dataset_idx=number)
    return np.diff([float(line) for line in path.read_text().split()]).tolist()  # type: ignore[no-any-return]


def _script(folder: str, epochs: int) -> list[float]:
    """Seconds of each epoch of the script."""
    print("measuring the script", file=sys.stderr, flush=True)
    stamps = _backend().run(_train, args=(f"{folder}/rows.npz", *_network(), epochs + 1))[0]
    return np.diff(stamps).tolist()  # type: ignore[no-any-return]


def _train(path: str, model: Any, optimizer: Any, epochs: int) -> list[float]:
    import horovod.torch as hvd

    hvd.init()
    rows = np.load(path)
    images = torch.as_tensor(rows["images"][hvd.rank() :: hvd.size()].copy())
    labels = torch.as_tensor(rows["labels"][hvd.rank() :: hvd.size()].copy())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    distributed = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    loss_of = torch.nn.CrossEntropyLoss()
    stamps = []
    for _ in range(epochs):
        total = torch.zeros(())
        for batch in torch.randperm(len(labels)).split(_BATCH):
            loss = loss_of(model(images[batch]), labels[batch])
            loss.backward()
            distributed.step()
            distributed.zero_grad()
            total += loss.detach() * len(batch)
        hvd.allreduce(total / len(labels), name="loss")
        stamps.append(time.perf_counter())
    return stamps


def _network() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def _backend() -> SparkBackend:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return SparkBackend(num_proc=_PROCESSES, env=environment, verbose=0)


def _digits(copies: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    return (
        np.tile((images / 16).astype(np.float32), (copies, 1)),
        np.tile(labels.astype(np.int64), copies),
    )


def _arrow(images: np.ndarray, labels: np.ndarray) -> pa.Table:
    offsets = pa.array(np.arange(0, images.size + 1, images.shape[1], dtype=np.int32))
    features = pa.ListArray.from_arrays(offsets, pa.array(images.ravel()))
    return pa.table({"features": features, "label": pa.array(labels)})


def _session() -> SparkSession:
    session = (
        SparkSession.builder.master(f"local[{_PROCESSES}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "fewer rows, one round")
    args = parser.parse_args()
    args.rounds, args.epochs = (1, 2) if args.quick else (3, 3)
    return args


if __name__ == "__main__":
    sys.exit(main())
