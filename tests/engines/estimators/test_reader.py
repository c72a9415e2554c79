"""The reader of Parquet shards: every row once, shuffled, in bounded memory."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from horovod.spark.common.columns import Column, block_of, describe, row_groups_of, shard_of
from horovod.spark.common.datamodule import ParquetDataModule


@pytest.fixture
def numbers(tmp_path: Path) -> str:
    """0 to 999 in files of very different sizes."""
    for number, (begin, end) in enumerate(itertools.pairwise((0, 3, 700, 700, 999, 1000))):
        table = pa.table({"n": np.arange(begin, end)})
        pq.write_table(table, tmp_path / f"part-{number}.parquet", row_group_size=100)
    return f"file://{tmp_path}"


def _module(url: str, **options: Any) -> ParquetDataModule:
    options = {"schema_fields": ["n"], "train_batch_size": 32, "random_seed": 1, **options}
    return ParquetDataModule(
        url, url, steps_per_epoch_train=options.pop("steps", 0), steps_per_epoch_val=0, **options
    )


def _read(batches: Any) -> list[int]:
    return [int(n) for batch in batches for n in batch["n"]]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_for_validation_have_each_row_once(numbers: str, size: int) -> None:
    found: list[int] = []
    for rank in range(size):
        with _module(numbers, cur_shard=rank, shard_count=size) as module:
            found += _read(module.val_data())
    assert found == list(range(1000))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_for_training_are_equally_large_and_leave_nothing_out(
    numbers: str, size: int
) -> None:
    shares = []
    for rank in range(size):
        with _module(numbers, cur_shard=rank, shard_count=size) as module:
            shares.append(_read(module.train_data()))
    assert {len(share) for share in shares} == {-(-1000 // size)}
    assert set().union(*shares) == set(range(1000))


def test_more_ranks_than_rows_have_one_each(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [5, 6]}), tmp_path / "a.parquet")
    for rank in range(4):
        with _module(f"file://{tmp_path}", cur_shard=rank, shard_count=4) as module:
            assert len(_read(module.train_data())) == 1


def test_each_epoch_has_another_order_that_the_seed_decides(numbers: str) -> None:
    orders = []
    for seed in (1, 1, 2):
        with _module(numbers, random_seed=seed) as module:
            data = module.train_data()
            orders.append((_read(data), _read(data)))
    assert orders[0] == orders[1] != orders[2]
    first, second = orders[0]
    assert first != second
    assert sorted(first) == sorted(second) == list(range(1000))
    # The first batches have rows of both ends of the dataset.
    assert max(first[:64]) - min(first[:64]) > 500


@pytest.mark.parametrize("pool_rows", [1, 100, 350])
def test_a_small_pool_mixes_near_rows_and_loses_none(numbers: str, pool_rows: int) -> None:
    with _module(numbers, shuffle_rows=pool_rows) as module:
        batches = [batch["n"] for batch in module.train_data()]
    assert [len(batch) for batch in batches] == [32] * 31 + [8]
    found = np.concatenate(batches)
    assert sorted(found) == list(range(1000))
    assert (np.diff(found) != 1).mean() > 0.5


def test_batches_belong_to_the_caller(numbers: str) -> None:
    for shuffle, kept in itertools.product((True, False), repeat=2):
        with _module(numbers, shuffle=shuffle, inmemory_cache_all=kept) as module:
            data = module.train_data()
            for batch in data:
                batch["n"][:] = -1
            assert sorted(_read(data)) == list(range(1000))


def test_without_shuffling_rows_come_as_they_lie(numbers: str) -> None:
    with _module(numbers, shuffle=False, reader_pool_type="dummy") as module:
        assert _read(module.train_data()) == list(range(1000))


def test_epochs_of_fewer_steps_go_on_where_the_last_one_ended(numbers: str) -> None:
    with _module(numbers, steps=8) as module:
        data = module.train_data()
        assert len(data) == 8
        found = [_read(data) for _ in range(4)]
    assert [len(epoch) for epoch in found] == [256, 256, 256, 232]
    assert sorted(itertools.chain(*found)) == list(range(1000))


def test_kept_rows_are_read_once(numbers: str, tmp_path: Path) -> None:
    with _module(numbers, inmemory_cache_all=True) as module:
        data = module.train_data()
        first = _read(data)
        for path in tmp_path.glob("*.parquet"):
            path.unlink()
        second = _read(data)
    assert first != second
    assert sorted(second) == list(range(1000))


def test_a_function_makes_other_rows(numbers: str) -> None:
    def halved(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame[frame["n"] % 2 == 0]
        return frame.assign(half=[np.full(2, n / 2) for n in frame["n"]])

    options = {"transformation_edit_fields": [("half", np.float32, (2,), False)]}
    with _module(numbers, transform_fn=halved, schema_fields=["half"], **options) as module:
        batches = list(itertools.islice(iter(module.train_data()), 2))
    assert batches[0]["half"].shape == (32, 2)
    assert batches[0]["half"].dtype == np.float32


def test_the_whole_set_is_never_in_memory(tmp_path: Path) -> None:
    row_count, width = 480_000, 64
    schema = pa.schema([("x", pa.list_(pa.float32(), width))])
    rng = np.random.default_rng(0)
    with pq.ParquetWriter(tmp_path / "a.parquet", schema, compression="none") as writer:
        for _ in range(48):
            values = pa.array(rng.random(row_count // 48 * width, np.float32))
            column = pa.FixedSizeListArray.from_arrays(values, width)
            writer.write_table(pa.table([column], schema), row_group_size=10_000)
    set_bytes = row_count * width * 4
    peak = count = 0
    options = {"schema_fields": ["x"], "shuffle_rows": 10_000, "train_batch_size": 256}
    tracemalloc.start()
    try:
        with _module(f"file://{tmp_path}", **options) as module:
            for batch in module.train_data():
                count += len(batch["x"])
                peak = max(peak, pa.total_allocated_bytes())
        traced = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == row_count
    # Arrow reads a few row groups ahead, more of them where the consumer is slow.
    assert peak + traced < 0.6 * set_bytes


def test_a_lost_column_and_rows_that_are_no_arrays_are_named() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [[1.0], [2.0, 3.0]], "b": [1, None], "c": ["x", "y"]})
    for name, message in (
        ("a", "1 and 2 values"),
        ("b", "1 of 2 values are null"),
        ("c", "no numbers"),
        ("d", "not among"),
    ):
        with pytest.raises(ValueError, match=message):
            block_of(batch, [name], None)


def test_vectors_of_both_forms_become_dense_rows() -> None:
    kind = pa.struct(
        [
            ("type", pa.int8()),
            ("size", pa.int32()),
            ("indices", pa.list_(pa.int32())),
            ("values", pa.list_(pa.float64())),
        ]
    )
    sparse = {"type": 0, "size": 3, "indices": [0, 2], "values": [1.0, 2.0]}
    dense = {"type": 1, "size": None, "indices": None, "values": [3.0, 4.0, 5.0]}
    column = pa.array([sparse, dense, sparse], kind)
    batch = pa.RecordBatch.from_arrays([column], ["v"])
    rows = block_of(batch.slice(1), ["v"], "float32")["v"]
    assert rows.dtype == np.float32
    assert rows.tolist() == [[3, 4, 5], [1, 0, 2]]
    found = describe(batch, {"v": "vector"})
    assert found == {"v": Column("vector", "float64", (3,), is_sparse=True)}


def test_nested_lists_are_arrays_of_more_dimensions() -> None:
    batch = pa.RecordBatch.from_pydict({"m": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]})
    assert block_of(batch, ["m"], None)["m"].shape == (2, 2, 2)


def test_a_share_says_which_rows_of_which_row_groups(numbers: str) -> None:
    import pyarrow.dataset as ds

    groups = row_groups_of(ds.dataset(numbers.removeprefix("file://"), format="parquet"))
    shard = shard_of(groups, rank=1, size=4, is_even=True)
    assert sum(rows.end - rows.begin for rows in shard) == 250
    assert {rows.group.path[-14:] for rows in shard} == {"part-1.parquet"}
