"""Columns of training data as NumPy arrays, made from Arrow batches without loops over rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# The name of MLlib's vectors among Spark's types.
VECTOR = "vector"
# The type field of a dense vector in Spark's struct of a vector.
_DENSE = 1
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
# The Spark metadata of a column of vectors that is stored as arrays.
_WAS_VECTOR = ("horovod", VECTOR)

Array = npt.NDArray[Any]
Block = dict[str, Array]


@dataclass(frozen=True)
class Column:
    """The Spark type of a column, and the dtype and shape of one row.

    ``is_sparse``: sparse vectors are stored; the reader makes dense rows from them.
    """

    spark_type: str
    dtype: str
    shape: tuple[int, ...]
    is_sparse: bool = False

    @property
    def size(self) -> int:
        """Numbers in a row."""
        return int(np.prod(self.shape, dtype=np.int64))

    def to_dict(self) -> dict[str, Any]:
        """The fields as values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Column:
        """The inverse of ``to_dict``."""
        return cls(**{**fields, "shape": tuple(fields["shape"])})


def row_count(block: Block) -> int:
    """The number of rows of a block."""
    return len(next(iter(block.values())))


def block_of(batch: pa.RecordBatch | pa.Table, names: Iterable[str], floats: str | None) -> Block:
    """An array ``[rows, ...]`` for each of the columns.

    Args:
        batch: rows from Parquet or Spark.
        names: the columns.
        floats: the dtype of floating-point numbers; None keeps theirs.

    Raises:
        ValueError: a column is missing, has nulls, has rows of different lengths, or has values
            that are no numbers.
    """
    block: Block = {}
    for name in names:
        if batch.schema.get_field_index(name) < 0:
            raise ValueError(f"column {name!r} is not among {batch.schema.names}")
        column = batch.column(name)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        array = _array(column, name)
        is_cast = floats is not None and array.dtype.kind == "f"
        block[name] = array.astype(floats, copy=False) if is_cast else array
    return block


def describe(batch: pa.RecordBatch | pa.Table, types: Mapping[str, str]) -> dict[str, Column]:
    """The columns of ``types`` (Spark types by name), with the dtypes and shapes in ``batch``."""
    columns = {}
    for name, array in block_of(batch, types, None).items():
        column = batch.column(name)
        is_sparse = pa.types.is_struct(column.type) and column[0].as_py()["type"] != _DENSE
        columns[name] = Column(types[name], array.dtype.name, array.shape[1:], is_sparse)
    return columns


def spark_types(schema: pa.Schema) -> dict[str, str]:
    """The Spark types of columns that Spark has written to Parquet; else types by Arrow's names."""
    text = (schema.metadata or {}).get(_SPARK_SCHEMA)
    if text is None:
        return {field.name: _spark_name(field.type) for field in schema}
    from pyspark.sql.types import StructType

    written = json.loads(text)
    names = {f.name: f.dataType.simpleString() for f in StructType.fromJson(written).fields}
    key, value = _WAS_VECTOR
    for field in written["fields"]:
        if field["metadata"].get(key) == value:
            names[field["name"]] = VECTOR
    return {name: names[name] for name in schema.names if name in names}


def _spark_name(kind: pa.DataType) -> str:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"array<{_spark_name(kind.value_type)}>"
    names = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint"}
    return {**names, "bool": "boolean", "halffloat": "float"}.get(str(kind), str(kind))


def _array(column: pa.Array, name: str) -> Array:
    kind = column.type
    if column.null_count:
        raise ValueError(f"column {name!r}: {column.null_count} of {len(column)} values are null")
    if pa.types.is_struct(kind):
        return _vectors(column, name)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(column, name)
    if pa.types.is_fixed_size_list(kind):
        values = _array(column.flatten(), name)
        return values.reshape(len(column), kind.list_size, *values.shape[1:])
    if pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise ValueError(f"column {name!r}: values of type {kind} are no numbers")
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _lists(column: pa.Array, name: str) -> Array:
    lengths = np.diff(column.offsets.to_numpy())
    width = _width(lengths, name)
    values = _array(column.flatten(), name)
    return values.reshape(len(column), width, *values.shape[1:])


def _vectors(column: pa.StructArray, name: str) -> Array:
    """Dense and sparse vectors as dense rows."""
    if {field.name for field in column.type} != {"type", "size", "indices", "values"}:
        raise ValueError(f"column {name!r}: values of type {column.type} are no numbers")
    is_dense = column.field("type").to_numpy(zero_copy_only=False) == _DENSE
    values = column.field("values")
    if is_dense.all():
        return _lists(values, name)
    lengths = np.diff(values.offsets.to_numpy())
    sizes = column.field("size").fill_null(0).to_numpy(zero_copy_only=False)
    width = _width(np.where(is_dense, lengths, sizes), name)
    is_of_dense = np.repeat(is_dense, lengths)
    places = np.empty(len(is_of_dense), np.int64)
    places[is_of_dense] = np.tile(np.arange(width), int(is_dense.sum()))
    places[~is_of_dense] = column.field("indices").flatten().to_numpy(zero_copy_only=False)
    rows = np.zeros((len(column), width))
    numbers = values.flatten().to_numpy(zero_copy_only=False)
    rows[np.repeat(np.arange(len(column)), lengths), places] = numbers
    return rows


def _width(lengths: Array, name: str) -> int:
    if not len(lengths):
        return 0
    width = int(lengths[0])
    if (lengths != width).any():
        other = int(lengths[lengths != width][0])
        raise ValueError(
            f"column {name!r}: rows have {width} and {other} values; expected equal numbers"
        )
    return width
