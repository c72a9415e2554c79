"""A PyTorch network on a Spark DataFrame: from rows to a trained model to predictions.

    python torch_estimator.py --num-proc 2 --epochs 10

Runs on this machine; with ``spark-submit --master ... torch_estimator.py`` on a cluster, whose
nodes all need access to the ``--store`` (s3://, hdfs://, a mounted folder).
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import array_max, array_position, avg, col
from sklearn.datasets import load_digits
from torch import nn

from horovod.spark.common.store import Store
from horovod.spark.torch import TorchEstimator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-proc", type=int, default=2, help="processes that train")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--store", help="folder of data and checkpoints; default a new one")
    args = parser.parse_args()

    spark = SparkSession.builder.appName("digits").getOrCreate()
    train_rows, test_rows = digits(spark).randomSplit([0.8, 0.2], seed=1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    with tempfile.TemporaryDirectory() as folder:
        estimator = TorchEstimator(
            num_proc=args.num_proc,
            store=Store.create(args.store or folder),
            model=model,
            optimizer=torch.optim.Adam(model.parameters(), lr=0.003),
            loss=nn.CrossEntropyLoss(),
            metrics=[accuracy],
            feature_cols=["features"],
            label_cols=["label"],
            validation=0.1,
            batch_size=32,
            epochs=args.epochs,
        )
        trained = estimator.fit(train_rows)
    predictions = trained.setOutputCols(["scores"]).transform(test_rows)
    predictions.select("label", "scores").show(5)
    print(f"accuracy on test rows: {share_right(predictions):.3f}")
    spark.stop()


def accuracy(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (scores.argmax(1) == labels).float().mean()


def digits(spark: SparkSession) -> DataFrame:
    images, labels = load_digits(return_X_y=True)
    rows = [
        (Vectors.dense(image / 16), int(label)) for image, label in zip(images, labels, strict=True)
    ]
    return spark.createDataFrame(rows, ["features", "label"])


def share_right(predictions: DataFrame) -> float:
    scores = vector_to_array("scores")
    place = array_position(scores, array_max(scores)) - 1
    return predictions.select(avg((place == col("label")).cast("double"))).first()[0]


if __name__ == "__main__":
    main()
