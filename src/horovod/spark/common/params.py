"""The params of the estimators and models of all frameworks."""

from __future__ import annotations

from typing import Any

from horovod.spark.common.declaration import Declared, Parameter, at_least, declares, one_of

_AT_LEAST_ONE = at_least(1)


def _named(name: str) -> tuple[str, str]:
    return f"set{name}", f"get{name}"


def _check_validation(name: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, str) and not (is_number and 0 <= value < 1):
        raise ValueError(
            f"{name}={value!r}: it has to be a share of the rows, at least 0 and less than 1, or "
            "the name of a column that says which rows are for validation"
        )


@declares(
    {
        "num_proc": Parameter(None, "number of processes that train", _AT_LEAST_ONE),
        "model": Parameter(None, "model to train"),
        "backend": Parameter(None, "processes that run the training", is_saved=False),
        "store": Parameter(None, "store for data and checkpoints", is_saved=False),
        "optimizer": Parameter(None, "optimizer of the model"),
        "loss": Parameter(None, "loss that is minimized"),
        "loss_weights": Parameter(None, "weights of the losses of several outputs"),
        "sample_weight_col": Parameter(None, "column with the weight of each row"),
        "metrics": Parameter([], "metrics in addition to the loss"),
        "callbacks": Parameter([], "callbacks of the training"),
        "feature_cols": Parameter(None, "input columns of the model"),
        "label_cols": Parameter(None, "columns to predict"),
        "continuous_cols": Parameter(None, "columns with continuous values, for data modules"),
        "categorical_cols": Parameter(None, "columns with categories, for data modules"),
        "validation": Parameter(
            None, "share of the rows, or column, for validation", _check_validation
        ),
        "gradient_compression": Parameter(None, "compression of the gradients that are sent"),
        "compress_sparse_cols": Parameter(False, "store vectors as vectors, not as arrays"),
        "batch_size": Parameter(32, "rows of a batch in each process", _AT_LEAST_ONE),
        "val_batch_size": Parameter(None, "rows of a batch in validation", _AT_LEAST_ONE),
        "epochs": Parameter(1, "passes over the data", _AT_LEAST_ONE),
        "train_steps_per_epoch": Parameter(None, "steps of an epoch", _AT_LEAST_ONE),
        "validation_steps_per_epoch": Parameter(None, "steps of a validation", _AT_LEAST_ONE),
        "verbose": Parameter(1, "0: print nothing"),
        "random_seed": Parameter(None, "seed of all random numbers"),
        "shuffle_buffer_size": Parameter(
            None,
            "rows of the pool from which rows are drawn; 0: do not shuffle",
            at_least(0),
            *_named("ShufflingBufferSize"),
        ),
        "shuffle": Parameter(True, "read rows in another order in each epoch"),
        "partitions_per_process": Parameter(10, "Parquet files per process", _AT_LEAST_ONE),
        "run_id": Parameter(None, "name of the run; an existing name continues that run"),
        "transformation_fn": Parameter(None, "function of a pandas DataFrame that returns one"),
        "transformation_edit_fields": Parameter(
            None, "(name, dtype, shape, nullable) of columns that it changes or adds"
        ),
        "transformation_removed_fields": Parameter(None, "columns that it removes"),
        "train_reader_num_workers": Parameter(
            2, "threads that read training data", _AT_LEAST_ONE, *_named("TrainReaderNumWorker")
        ),
        "val_reader_num_workers": Parameter(
            2, "threads that read validation data", _AT_LEAST_ONE, *_named("ValReaderNumWorker")
        ),
        "reader_pool_type": Parameter(
            "thread",
            "kind of reader: thread, process, dummy",
            one_of(("thread", "process", "dummy")),
        ),
        "data_module": Parameter(None, "class that reads the data"),
        "label_shapes": Parameter(None, "shapes of the labels, batch dimension first"),
        "inmemory_cache_all": Parameter(
            False, "keep rows in memory after one epoch", None, *_named("InMemoryCacheAll")
        ),
        "use_gpu": Parameter(True, "train on a GPU if there is one"),
        "mp_start_method": Parameter(
            None, "start method of data loaders' processes", one_of(("fork", "spawn", "forkserver"))
        ),
        "backward_passes_per_step": Parameter(
            1, "batches whose gradients are summed before a step", _AT_LEAST_ONE
        ),
        "tensorflow_dataset_prefetch_buffer_size": Parameter(
            0, "batches that TensorFlow prefetches", at_least(-1)
        ),
    }
)
class EstimatorParams(Declared):
    """The params of an estimator."""


@declares(
    {
        "history": Parameter(None, "loss and metrics of each epoch"),
        "model": Parameter(None, "trained model"),
        "feature_columns": Parameter(None, "input columns of the model"),
        "label_columns": Parameter(
            None, "columns that the model predicts", None, "setLabelColoumns", "getLabelColumns"
        ),
        "run_id": Parameter(None, "name of the run"),
        "_metadata": Parameter(None, "description of the columns"),
        "outputCols": Parameter(None, "names of the columns with predictions"),
    }
)
class ModelParams(Declared):
    """The params of a model."""
