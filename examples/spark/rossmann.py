"""Forecast the sales of shops: features from Spark, and a Keras network with embeddings.

    python rossmann.py --num-proc 2 --epochs 10

The rows are made up, similar to the sales of Rossmann's shops in Kaggle's competition of 2015:
shops of four kinds, with holidays and special offers, over more than a year. The measure is that of
the competition: the root mean square of the relative error in the last weeks. The baseline is the
mean sales of each shop on that day of the week. Exits non-zero when the error of the network is not
far below the error of the baseline. Runs on this machine; with ``spark-submit --master ...
rossmann.py`` on a cluster, whose nodes need access to the ``--store`` (s3://, hdfs://, a mounted
folder).
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
import tempfile

import keras
import numpy as np
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from horovod.spark.common.store import Store
from horovod.spark.keras import KerasEstimator

FIRST_DAY = datetime.date(2013, 1, 1)
CATEGORIES = {"shop": None, "kind": 4, "weekday": 7, "month": 12}  # numbers of values
NUMBERS = ["promo", "holiday", "usual"]


def main() -> None:
    args = parse_arguments()
    keras.utils.set_random_seed(args.seed)
    builder = SparkSession.builder.appName("rossmann")
    builder.config("spark.sql.shuffle.partitions", args.num_proc)  # few rows: few tasks
    spark = builder.getOrCreate()
    rows = with_features(made_up_sales(spark, args.shops, args.days, args.seed), args.test_days)
    train_rows, test_rows = rows.where("not is_test"), rows.where("is_test")
    with tempfile.TemporaryDirectory() as folder:
        estimator = KerasEstimator(
            num_proc=args.num_proc,
            store=Store.create(args.store or folder),
            model=network(args.shops),
            optimizer=keras.optimizers.Adam(args.lr),
            loss="mean_absolute_error",
            feature_cols=[*CATEGORIES, *NUMBERS],
            label_cols=["log_sales"],
            validation=0.1,
            batch_size=args.batch_size,
            epochs=args.epochs,
            random_seed=args.seed,
            verbose=0,
        )
        trained = estimator.fit(train_rows)
    forecast = trained.setOutputCols(["log_forecast"]).transform(test_rows).cache()
    forecast.select("shop", "day", "sales", F.exp("log_forecast").alias("forecast")).show(5)
    error = relative_error(forecast, F.exp("log_forecast"))
    usual = relative_error(forecast, F.exp("usual"))
    print(f"error of the forecast: {error:.3f}, of the usual sales: {usual:.3f}")
    spark.stop()
    if error > args.max_ratio * usual:
        sys.exit(f"the forecast's error is above {args.max_ratio} of that of the usual sales")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-proc", type=int, default=2, help="processes that train")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="rows per process and step")
    parser.add_argument("--lr", type=float, default=0.005, help="learning rate of one process")
    parser.add_argument("--shops", type=int, default=40)
    parser.add_argument("--days", type=int, default=400, help="with sales, of every shop")
    parser.add_argument("--test-days", type=int, default=42, help="the last days, for the test")
    parser.add_argument("--store", help="folder of data and checkpoints; default a new one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--max-ratio", type=float, default=0.7, help="error of the forecast to that of usual sales"
    )
    return parser.parse_args()


def made_up_sales(spark: SparkSession, shop_count: int, day_count: int, seed: int) -> DataFrame:
    """A row for each shop and day: shop, kind, day, promo, holiday, sales (0: it was closed)."""
    generator = np.random.default_rng(seed)
    weekday_effect = np.array([0.2, 0.05, 0.0, 0.0, 0.1, -0.15, 0.0])  # of log sales, from Monday
    kinds = generator.integers(4, size=shop_count)
    sizes = generator.normal(8.7, 0.3, size=shop_count)
    rows = []
    for shop in range(shop_count):
        holidays = generator.random(day_count + 3) < 0.03
        for number in range(day_count):
            day = FIRST_DAY + datetime.timedelta(days=number)
            promo = (number // 7 + shop) % 2 == 0 and day.weekday() < 5
            level = sizes[shop] + weekday_effect[day.weekday()] + 0.3 * promo * (kinds[shop] != 1)
            level += 0.15 * math.cos(2 * math.pi * day.timetuple().tm_yday / 365)
            level += 0.2 * holidays[number + 1 : number + 4].any()  # people stock up
            is_open = not holidays[number] and day.weekday() != 6
            sales = round(math.exp(level + generator.normal(0, 0.1))) if is_open else 0
            rows.append((shop, int(kinds[shop]), day, int(promo), int(holidays[number]), sales))
    return spark.createDataFrame(
        rows, "shop int, kind int, day date, promo int, holiday int, sales int"
    )


def with_features(sales: DataFrame, test_days: int) -> DataFrame:
    """Days on which a shop was open, with parts of the date and the usual sales of the weekday.

    ``holiday`` becomes whether a holiday comes within three days. The usual sales are those of the
    days before the test.
    """
    last = sales.agg(F.max("day")).first()[0]
    ahead = Window.partitionBy("shop").orderBy("day").rowsBetween(1, 3)
    rows = (
        sales.withColumn("holiday", F.max("holiday").over(ahead).cast("float"))
        .fillna(0, ["holiday"])  # of the last day
        .where("sales > 0")
        .withColumn("promo", F.col("promo").cast("float"))
        .withColumn("weekday", F.weekday("day"))
        .withColumn("month", F.month("day") - 1)
        .withColumn("log_sales", F.log("sales").cast("float"))
        .withColumn("is_test", F.col("day") > F.date_sub(F.lit(last), test_days))
    )
    usual = rows.where("not is_test").groupBy("shop", "weekday")
    mean = F.avg("log_sales").cast("float").alias("usual")
    return rows.join(usual.agg(mean), ["shop", "weekday"])


def network(shop_count: int) -> keras.Model:
    """A network over embedded categories and numbers; its output is added to the usual sales."""
    layers = keras.layers
    inputs, parts = [], []
    for name, count in CATEGORIES.items():
        inputs.append(layers.Input((1,), name=name, dtype="int32"))
        parts.append(layers.Flatten()(layers.Embedding(count or shop_count, 4)(inputs[-1])))
    numbers = [layers.Input((1,), name=name) for name in NUMBERS]
    hidden = layers.Concatenate()([*parts, *numbers[:-1]])
    for width in (64, 32):
        hidden = layers.Dense(width, activation="relu")(hidden)
    log_sales = layers.Add()([layers.Dense(1)(hidden), numbers[-1]])
    return keras.Model([*inputs, *numbers], log_sales)


def relative_error(forecast: DataFrame, sales: object) -> float:
    """The root mean square of the relative error."""
    part = (F.col("sales") - sales) / F.col("sales")
    return math.sqrt(forecast.select(F.avg(part * part)).first()[0])


if __name__ == "__main__":
    main()
