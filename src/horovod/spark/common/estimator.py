"""The base classes of the estimators and models of all frameworks.

A model predicts Arrow batches on Spark's executors.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.ml import Estimator, Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import Vector, Vectors, VectorUDT
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType

from horovod.spark.common.backend import Backend, SparkBackend
from horovod.spark.common.columns import VECTOR, Array, Column, block_of
from horovod.spark.common.declaration import Declared, Persistent
from horovod.spark.common.params import EstimatorParams, ModelParams
from horovod.spark.common.plan import Plan, make_plan
from horovod.spark.common.preparation import prepare_data
from horovod.spark.common.store import Store

# From arrays of the features, in their order, to arrays of the outputs.
Predict = Callable[[Sequence[Array]], Sequence[Array]]
# Rows that a model gets at a time: a batch of Arrow may be too large for the memory.
_ROWS = 1024
_INTEGERS = ("tinyint", "smallint", "int", "bigint", "boolean")


class HorovodEstimator(EstimatorParams, Persistent, Estimator[Any]):
    """Trains a model on the rows of a DataFrame, in processes of a backend.

    A framework defines the training (``_train``) and checks its params (``_check``).

    Raises:
        TypeError: an argument is no param.
        ValueError: a param's value is unusable.
    """

    _run_prefix: str

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._check_processes()

    def fit(
        self, dataset: DataFrame | None = None, params: Any = None, *, df: DataFrame | None = None
    ) -> Any:
        """Train on the rows of ``dataset``, or ``df``: a model, or one for each of ``params``.

        Raises:
            TypeError: both or neither are given.
            ValueError: params or data are unusable.
        """
        return super().fit(_the_one(dataset, df), params)

    def fit_on_parquet(
        self, params: Mapping[Any, Any] | None = None, dataset_idx: int | None = None
    ) -> Any:
        """Train on the data in the store's folders for training and validation data.

        Args:
            params: other values for params, as for ``fit``.
            dataset_idx: number of the dataset, from ``prepare_data``.

        Returns:
            The model.

        Raises:
            ValueError: params or data are unusable.
        """
        if params:
            return self.copy(dict(params)).fit_on_parquet(dataset_idx=dataset_idx)
        backend, store = self._checked()
        return self._fit_prepared(backend, store, dataset_idx)

    def _fit(self, dataset: DataFrame) -> Any:
        backend, store = self._checked()
        with prepare_data(
            backend.num_processes(),
            store,
            dataset,
            label_columns=self.value("label_cols"),
            feature_columns=self.value("feature_cols"),
            validation=self.value("validation"),
            sample_weight_col=self.value("sample_weight_col"),
            compress_sparse=self.value("compress_sparse_cols"),
            partitions_per_process=self.value("partitions_per_process"),
            verbose=self.value("verbose"),
        ) as dataset_idx:
            return self._fit_prepared(backend, store, dataset_idx)

    def _checked(self) -> tuple[Backend, Store]:
        """Check all params; the backend and the store."""
        require(self, "model", "Model parameter is required")
        require(self, "store", "Store parameter is required")
        require(self, "feature_cols", "feature_cols are missing")
        require(self, "label_cols", "label_cols are missing")
        shapes, labels = self.value("label_shapes"), self.value("label_cols")
        if shapes is not None and len(shapes) != len(labels):
            raise ValueError(f"{len(shapes)} label_shapes for {len(labels)} labels")
        self._check()
        self._check_processes()
        backend = self.value("backend") or SparkBackend(self.value("num_proc"))
        return backend, self.value("store")

    def _check_processes(self) -> None:
        if self.value("num_proc") is not None and self.value("backend") is not None:
            raise ValueError("give num_proc or backend, not both: a backend knows its processes")

    def _fit_prepared(self, backend: Backend, store: Store, dataset_idx: int | None) -> Any:
        run_id = self.value("run_id") or f"{self._run_prefix}_{int(time.time())}"
        plan = make_plan(self, store, run_id, dataset_idx)
        path = store.get_checkpoint_path(run_id)
        is_continued = path is not None and self.value("run_id") and store.exists(path)
        return self._train(backend, plan, str(path) if is_continued else None)

    @abstractmethod
    def _check(self) -> None:
        """Raise ``ValueError`` if params of the framework are unusable."""

    @abstractmethod
    def _train(self, backend: Backend, plan: Plan, checkpoint: str | None) -> Any:
        """Train, from the checkpoint at a path if given; returns the model."""


class HorovodModel(ModelParams, Persistent, Model):
    """A trained model: ``transform`` adds a column with predictions for each label."""

    def setOutputCols(self, value: Sequence[str]) -> HorovodModel:  # noqa: N802
        """Name the columns with predictions; by default ``<label>__output``."""
        self._set(outputCols=list(value))
        return self

    def getOutputCols(self) -> list[str]:  # noqa: N802
        """Names of the columns with predictions."""
        labels = self.value("label_columns") or ()
        return self.value("outputCols") or [f"{label}__output" for label in labels]

    def transform(
        self, dataset: DataFrame | None = None, params: Any = None, *, df: DataFrame | None = None
    ) -> DataFrame:
        """``dataset``, or ``df``, with a column of predictions for each label.

        Raises:
            TypeError: both or neither are given.
            ValueError: params or columns are unusable.
        """
        return super().transform(_the_one(dataset, df), params)

    def _transform(self, df: DataFrame) -> DataFrame:
        require(self, "model", "the model is missing")
        features, outputs = tuple(self.value("feature_columns")), tuple(self._outputs())
        missing = [name for name in features if name not in df.columns]
        if missing:
            raise ValueError(f"the DataFrame has no columns {missing}; it has {df.columns}")
        taken = [output.name for output in outputs if output.name in df.columns]
        if taken:
            raise ValueError(
                f"the DataFrame has columns {taken} already; setOutputCols names others"
            )
        sent = df.sparkSession.sparkContext.broadcast(self._predictor_data())
        added = [
            StructField(output.name, DoubleType() if output.is_scalar else ArrayType(DoubleType()))
            for output in outputs
        ]
        task = _Task(sent, self._predictor, features, outputs, self._floats())
        raw = df.mapInArrow(task, StructType([*df.schema.fields, *added]))
        casts = {output.name: _cast(output) for output in outputs}
        return raw.select(*[casts.get(name, F.col(f"`{name}`")) for name in raw.columns])

    def _outputs(self) -> list[Output]:
        """The columns with predictions."""
        labels, names = list(self.value("label_columns")), self.getOutputCols()
        if len(names) != len(labels):
            raise ValueError(f"{len(names)} output columns {names} for {len(labels)} labels")
        metadata = self.value("_metadata") or {}
        columns, sizes = metadata.get("columns", {}), metadata.get("sizes", [1] * len(labels))
        return [
            Output(name, _label_column(columns, label, size), size)
            for name, label, size in zip(names, labels, sizes, strict=True)
        ]

    @staticmethod
    @abstractmethod
    def _predictor(data: bytes) -> Any:
        """The function that predicts, in a Spark task; made from ``_predictor_data``."""

    @abstractmethod
    def _predictor_data(self) -> bytes:
        """The argument of ``_predictor``."""

    def _floats(self) -> str | None:
        floats: str | None = (self.value("_metadata") or {}).get("floats", "float32")
        return floats


def _the_one(dataset: DataFrame | None, df: DataFrame | None) -> DataFrame:
    """The DataFrame, given by Spark ML's name or by the original's."""
    given = [frame for frame in (dataset, df) if frame is not None]
    if len(given) != 1:
        raise TypeError("expected a DataFrame, as dataset or as df")
    return given[0]


def require(instance: Declared, name: str, message: str) -> None:
    """Raise ``ValueError`` unless a param is set."""
    if instance.value(name) is None:
        raise ValueError(message)


def results_of(plan: Plan, history: Any, sizes: Sequence[int], floats: str) -> dict[str, Any]:
    """The params of a model that every framework sets after a training."""
    metadata = {
        "columns": {name: column.to_dict() for name, column in plan.columns.items()},
        "sizes": list(sizes),
        "floats": floats,
    }
    return {
        "history": history,
        "feature_columns": list(plan.features),
        "label_columns": list(plan.labels),
        "run_id": plan.run_id,
        "_metadata": metadata,
    }


def _label_column(columns: Mapping[str, Any], label: str, size: int) -> Column:
    if label in columns:
        return Column.from_dict(columns[label])
    return Column("double", "float64", () if size == 1 else (size,))


class Output(NamedTuple):
    """A column with predictions: its name, its label, and the numbers in one row."""

    name: str
    label: Column
    size: int

    @property
    def is_scalar(self) -> bool:
        """Whether a row is one number; class scores for a scalar label are a vector."""
        return self.size == 1 and not self.label.shape


class _Task(NamedTuple):
    """Adds the ``outputs``; ``make`` makes the function that predicts, once in each task.

    ``model`` is its argument, which was sent once to each executor.
    """

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
