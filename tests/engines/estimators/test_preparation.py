"""DataFrames in a store: written, split, kept and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from horovod.spark.common.columns import describe, spark_types
from horovod.spark.common.util import prepare_data


def _rows(store: Any, path: str) -> int:
    return int(store.get_parquet_dataset(path).count_rows())


def test_a_column_says_which_rows_are_for_validation(digits: Any, store: Any) -> None:
    with prepare_data(
        2,
        store,
        digits,
        ["label"],
        ["features"],
        validation="is_val",
        sample_weight_col="weight",
        partitions_per_process=2,
    ) as number:
        train = store.get_parquet_dataset(store.get_train_data_path(number))
        assert len(train.files) == 4
        assert set(train.schema.names) == {"features", "label", "weight"}
        assert train.count_rows() == 480
        assert _rows(store, store.get_val_data_path(number)) == 120
        found = describe(train.head(3), spark_types(train.schema))
        assert found["features"].spark_type == "vector"
        assert found["features"].shape == (64,)


def test_a_share_splits_every_row_into_one_of_the_halves(digits: Any, store: Any) -> None:
    options = {"validation": 0.25, "partitions_per_process": 1}
    with prepare_data(2, store, digits, ["label"], ["mean"], **options) as number:
        counts = [
            _rows(store, path)
            for path in (store.get_train_data_path(number), store.get_val_data_path(number))
        ]
    assert sum(counts) == 600
    assert 100 < counts[1] < 200


def test_the_same_frame_is_written_once(digits: Any, store: Any) -> None:
    options = {"label_columns": ["label"], "feature_columns": ["mean"], "partitions_per_process": 1}
    with prepare_data(1, store, digits, **options) as first:
        files = store.get_parquet_dataset(store.get_train_data_path(first)).files
        with prepare_data(1, store, digits, **options) as again:
            assert again == first
        with prepare_data(1, store, digits.limit(7), **options) as other:
            assert other != first
    with prepare_data(1, store, digits, **options) as later:
        assert store.get_parquet_dataset(store.get_train_data_path(later)).files == files


def test_data_goes_beside_what_a_user_has_there(digits: Any, store: Any) -> None:
    options = {"label_columns": ["label"], "feature_columns": ["mean"], "partitions_per_process": 1}
    folder = Path(store.get_localized_path(store.get_train_data_path(0)))
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("words")
    for frame in (digits.limit(5), digits.limit(6)):  # the second replaces the first
        with prepare_data(1, store, frame, **options) as number:
            assert number == 1
            rows = _rows(store, store.get_train_data_path(number))
        assert rows in (5, 6)
    assert rows == 6
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_processes": 0}, "greater than 0"),
        ({"label_columns": []}, "label columns are missing"),
        ({"feature_columns": ["nothing"]}, "nothing"),
        ({"validation": "features"}, "of type vector"),
    ],
)
def test_unusable_arguments_are_refused(
    digits: Any, store: Any, changes: dict[str, Any], message: str
) -> None:
    options = {
        "num_processes": 1,
        "store": store,
        "df": digits,
        "label_columns": ["label"],
        "feature_columns": ["features"],
        **changes,
    }
    with pytest.raises(ValueError, match=message), prepare_data(**options):
        pass
