"""Columns of training data as NumPy arrays, made from Arrow batches without loops over rows.

A user's function may transform rows before. A dataset is cut into shards of equally many rows, one
for each rank.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SPARK_TYPES = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint"}
_FLOAT_TYPES = {"float16": "float", "float32": "float", "float64": "double", "bool": "boolean"}

# Reading a footer takes a round trip and few bytes.
_FOOTER_THREADS = 16

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
        block[name] = _cast(_array(column, name), floats)
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
    names = {**_SPARK_TYPES, "bool": "boolean", "halffloat": "float"}
    return names.get(str(kind), str(kind))


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


def _cast(array: Array, floats: str | None) -> Array:
    """``array`` with floating-point numbers of the dtype ``floats``, if given."""
    is_cast = floats is not None and array.dtype.kind == "f"
    return array.astype(floats, copy=False) if is_cast else array


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


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file."""

    path: str
    index: int
    rows: int


class RowRange(NamedTuple):
    """Rows ``begin`` to ``end`` of a row group."""

    group: RowGroup
    begin: int
    end: int


def row_groups_of(dataset: Any) -> list[RowGroup]:
    """The row groups of a dataset of pyarrow that have rows, in the order of their paths."""
    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        fragments = sorted(dataset.get_fragments(), key=lambda fragment: str(fragment.path))
        metadata = pool.map(lambda fragment: fragment.metadata, fragments)
        return [
            RowGroup(fragment.path, group, footer.row_group(group).num_rows)
            for fragment, footer in zip(fragments, metadata, strict=True)
            for group in range(footer.num_row_groups)
            if footer.row_group(group).num_rows
        ]


def rows_of(groups: Sequence[RowGroup]) -> int:
    """The number of rows of all row groups."""
    return sum(group.rows for group in groups)


def shard_of(groups: Sequence[RowGroup], rank: int, size: int, is_even: bool) -> list[RowRange]:
    """The rows of a rank, at least one.

    Every row is in one shard, and the sizes of shards differ by at most one row. With ``is_even``
    all shards have the same size, so all ranks make the same number of steps; then some rows are in
    two shards.
    """
    total = rows_of(groups)
    begin, end = rank * total // size, (rank + 1) * total // size
    wanted = -(-total // size) if is_even else max(end - begin, 1)
    begin = min(begin, total - wanted)
    ranges, first = [], 0
    for group in groups:
        inside = (max(begin, first) - first, min(begin + wanted, first + group.rows) - first)
        if inside[0] < inside[1]:
            ranges.append(RowRange(group, *inside))
        first += group.rows
    return ranges


def steps_of(shard: Sequence[RowRange], batch_size: int) -> int:
    """The number of batches of a shard."""
    return -(-sum(rows.end - rows.begin for rows in shard) // batch_size)


class Transformation(NamedTuple):
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
        return {name: _cells(frame[name], name, floats, formats.get(name)) for name in names}

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


def _cells(
    cells: Any, name: str, floats: str | None, wanted: tuple[Any, tuple[int, ...]] | None
) -> Array:
    array = np.stack(list(cells)) if cells.dtype == object else cells.to_numpy()
    if wanted is not None:
        dtype, shape = wanted
        array = array.astype(dtype, copy=False).reshape(len(array), *shape)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"column {name!r} is of dtype {array.dtype} after transformation_fn")
    return _cast(array, floats)


def _type_of(array: Array) -> str:
    kind = {**_SPARK_TYPES, **_FLOAT_TYPES}.get(array.dtype.name, "double")
    return "array<" * (array.ndim - 1) + kind + ">" * (array.ndim - 1)
