"""A user's transformation of rows, before they become batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from horovod.spark.common.columns import Array, Block, Column

_SPARK_TYPES = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint"}
_FLOAT_TYPES = {"float16": "float", "float32": "float", "float64": "double", "bool": "boolean"}


@dataclass(frozen=True)
class Transformation:
    """A function of pandas DataFrames, and the schema of its result.

    Args:
        function: takes a DataFrame and returns one; cells can be arrays.
        edited: ``(name, dtype, shape, nullable)`` of columns that it changes or adds.
        removed: columns that it removes.
    """

    function: Callable[[Any], Any]
    edited: tuple[tuple[Any, ...], ...] = ()
    removed: tuple[str, ...] = ()

    @classmethod
    def of(cls, function: Any, params: Mapping[str, Any]) -> Transformation | None:
        """The transformation by ``function`` and an estimator's params; None without a function."""
        if function is None:
            return None
        edited = tuple(map(tuple, params.get("transformation_edit_fields") or ()))
        return cls(function, edited, tuple(params.get("transformation_removed_fields") or ()))

    def block(self, batch: pa.RecordBatch, names: Sequence[str], floats: str | None) -> Block:
        """The arrays of the columns that the function returns for these rows.

        Raises:
            ValueError: a column is missing, or its values are no numbers.
        """
        frame = self.function(batch.to_pandas())
        missing = [name for name in names if name not in frame.columns or name in self.removed]
        if missing:
            raise ValueError(
                f"columns {missing} are missing after transformation_fn, which gives {list(frame)}"
            )
        formats = {name: (dtype, shape) for name, dtype, shape, *_ in self.edited}
        return {name: _array(frame[name], name, floats, formats.get(name)) for name in names}

    def describe(
        self, batch: pa.RecordBatch, names: Sequence[str], types: Mapping[str, str]
    ) -> dict[str, Column]:
        """The columns that the function returns for these rows; ``types`` are those before it."""
        edited = {name for name, *_ in self.edited}
        columns = {}
        for name, array in self.block(batch, names, None).items():
            spark_type = types.get(name) if name not in edited else None
            columns[name] = Column(spark_type or _type_of(array), array.dtype.name, array.shape[1:])
        return columns


def _array(
    cells: Any, name: str, floats: str | None, wanted: tuple[Any, tuple[int, ...]] | None
) -> Array:
    array = np.stack(list(cells)) if cells.dtype == object else cells.to_numpy()
    if wanted is not None:
        dtype, shape = wanted
        array = array.astype(dtype, copy=False).reshape(len(array), *shape)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"column {name!r} is of dtype {array.dtype} after transformation_fn")
    is_cast = floats is not None and array.dtype.kind == "f"
    return array.astype(floats, copy=False) if is_cast else array


def _type_of(array: Array) -> str:
    kind = {**_SPARK_TYPES, **_FLOAT_TYPES}.get(array.dtype.name, "double")
    return "array<" * (array.ndim - 1) + kind + ">" * (array.ndim - 1)
