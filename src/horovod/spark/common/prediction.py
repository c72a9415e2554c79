"""Predictions for a DataFrame: a model processes Arrow batches on Spark's executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import Vector, Vectors, VectorUDT
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType

from horovod.spark.common.columns import VECTOR, Array, Column, block_of

# From arrays of the features, in their order, to arrays of the outputs.
Predict = Callable[[Sequence[Array]], Sequence[Array]]
# Rows that a model gets at a time: a batch of Arrow may be too large for the memory.
_ROWS = 1024
_INTEGERS = ("tinyint", "smallint", "int", "bigint", "boolean")


@dataclass(frozen=True)
class Output:
    """A column with predictions: its name, its label, and the numbers in one row."""

    name: str
    label: Column
    size: int

    @property
    def is_scalar(self) -> bool:
        """Whether a row is one number; class scores for a scalar label are a vector."""
        return self.size == 1 and not self.label.shape


def predicted(
    df: DataFrame,
    features: Sequence[str],
    outputs: Sequence[Output],
    make: Callable[[bytes], Predict],
    model: bytes,
    floats: str | None,
) -> DataFrame:
    """``df`` with the output columns.

    Args:
        df: has the features; its columns stay.
        features: names of the model's input columns.
        outputs: the columns that are added.
        make: makes the function from ``model``, once per task.
        model: sent once to each executor.
        floats: the dtype of floating-point numbers for the model.

    Raises:
        ValueError: a feature is missing, or an output column exists already.
    """
    missing = [name for name in features if name not in df.columns]
    if missing:
        raise ValueError(f"the DataFrame has no columns {missing}; it has {df.columns}")
    taken = [output.name for output in outputs if output.name in df.columns]
    if taken:
        raise ValueError(f"the DataFrame has columns {taken} already; setOutputCols names others")
    sent = df.sparkSession.sparkContext.broadcast(model)
    added = [
        StructField(output.name, DoubleType() if output.is_scalar else ArrayType(DoubleType()))
        for output in outputs
    ]
    task = _Task(sent, make, tuple(features), tuple(outputs), floats)
    raw = df.mapInArrow(task, StructType([*df.schema.fields, *added]))
    casts = {output.name: _cast(output) for output in outputs}
    return raw.select(*[casts.get(name, F.col(f"`{name}`")) for name in raw.columns])


@dataclass(frozen=True)
class _Task:
    model: Any
    make: Callable[[bytes], Predict]
    features: tuple[str, ...]
    outputs: tuple[Output, ...]
    floats: str | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        predict = None
        for batch in batches:
            predict = predict or self.make(self.model.value)
            for begin in range(0, batch.num_rows, _ROWS):
                rows = batch.slice(begin, _ROWS)
                block = block_of(rows, self.features, self.floats)
                found = predict([block[name] for name in self.features])
                for output, array in zip(self.outputs, found, strict=True):
                    rows = rows.append_column(output.name, _arrow(output, array))
                yield rows


def _arrow(output: Output, array: Array) -> pa.Array:
    numbers = np.ascontiguousarray(array, dtype=np.float64).reshape(len(array), -1)
    if numbers.shape[1] != output.size:
        raise ValueError(
            f"the model gives {numbers.shape[1]} numbers for {output.name!r}, not {output.size}"
        )
    flat = pa.array(numbers.ravel())
    if output.is_scalar:
        return flat
    offsets = np.arange(0, len(flat) + 1, output.size, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), flat)


def _cast(output: Output) -> Any:
    column, kind = F.col(f"`{output.name}`"), output.label.spark_type
    if output.is_scalar and kind != VECTOR:
        number = F.round(column) if kind in _INTEGERS else column
        return number.cast(kind).alias(output.name)
    if kind.startswith("array<") and not kind.startswith("array<array"):
        return column.cast(kind).alias(output.name)
    if output.label.is_sparse:
        return F.udf(_sparse, VectorUDT())(column).alias(output.name)
    return array_to_vector(column).alias(output.name)


def _sparse(values: Sequence[float]) -> Vector:
    entries: Mapping[int, float] = {place: v for place, v in enumerate(values) if v}
    return Vectors.sparse(len(values), dict(entries))
