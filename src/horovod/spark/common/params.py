"""The params that the estimators, and their models, of all frameworks have."""

from __future__ import annotations

from typing import Any

from horovod.spark.common.declaration import Declared, Parameter, at_least, declares, one_of

__all__ = ["EstimatorParams", "ModelParams"]

_AT_LEAST_ONE = at_least(1)


def _check_validation(name: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, str) and not (is_number and 0 <= value < 1):
        raise ValueError(
            f"{name}={value!r}: it has to be a share of the rows, at least 0 and less than 1, or "
            "the name of a column that says which rows are for validation"
        )


@declares(
    {
        "num_proc": Parameter(None, "how many processes train", _AT_LEAST_ONE),
        "model": Parameter(None, "what is trained"),
        "backend": Parameter(None, "where processes run", is_saved=False),
        "store": Parameter(None, "where data and checkpoints lie", is_saved=False),
        "optimizer": Parameter(None, "makes the steps"),
        "loss": Parameter(None, "what is made small"),
        "loss_weights": Parameter(None, "weights of the losses of several outputs"),
        "sample_weight_col": Parameter(None, "column with the weight of each row"),
        "metrics": Parameter([], "what is computed beside the loss"),
        "callbacks": Parameter([], "what is called during training"),
        "feature_cols": Parameter(None, "columns that the model gets"),
        "label_cols": Parameter(None, "columns that it has to predict"),
        "continuous_cols": Parameter(None, "columns with continuous values, for data modules"),
        "categorical_cols": Parameter(None, "columns with categories, for data modules"),
        "validation": Parameter(
            None, "share of the rows, or column, for validation", _check_validation
        ),
        "gradient_compression": Parameter(None, "what travels instead of gradients"),
        "compress_sparse_cols": Parameter(False, "store sparse vectors as such"),
        "batch_size": Parameter(32, "rows of a step of a process", _AT_LEAST_ONE),
        "val_batch_size": Parameter(None, "the same for validation", _AT_LEAST_ONE),
        "epochs": Parameter(1, "passes over the data", _AT_LEAST_ONE),
        "train_steps_per_epoch": Parameter(None, "steps of an epoch", _AT_LEAST_ONE),
        "validation_steps_per_epoch": Parameter(None, "steps of a validation", _AT_LEAST_ONE),
        "verbose": Parameter(1, "0: say nothing"),
        "random_seed": Parameter(None, "of all random numbers"),
        "shuffle_buffer_size": Parameter(
            None,
            "rows among which the next one is drawn; 0: do not shuffle",
            at_least(0),
            setter="setShufflingBufferSize",
            getter="getShufflingBufferSize",
        ),
        "shuffle": Parameter(True, "rows come in another order in each epoch"),
        "partitions_per_process": Parameter(10, "files of each process", _AT_LEAST_ONE),
        "run_id": Parameter(None, "name of the run; that of an older one continues it"),
        "transformation_fn": Parameter(None, "makes a pandas DataFrame out of one"),
        "transformation_edit_fields": Parameter(
            None, "(name, dtype, shape, nullable) of columns that it changes or adds"
        ),
        "transformation_removed_fields": Parameter(None, "columns that it takes away"),
        "train_reader_num_workers": Parameter(
            2,
            "threads that decode training data",
            _AT_LEAST_ONE,
            setter="setTrainReaderNumWorker",
            getter="getTrainReaderNumWorker",
        ),
        "val_reader_num_workers": Parameter(
            2,
            "threads that decode validation data",
            _AT_LEAST_ONE,
            setter="setValReaderNumWorker",
            getter="getValReaderNumWorker",
        ),
        "reader_pool_type": Parameter(
            "thread", "who decodes: thread, process, dummy", one_of(("thread", "process", "dummy"))
        ),
        "label_shapes": Parameter(None, "shapes of the labels, batch dimension first"),
        "inmemory_cache_all": Parameter(
            False,
            "rows stay in memory after the first epoch",
            setter="setInMemoryCacheAll",
            getter="getInMemoryCacheAll",
        ),
        "use_gpu": Parameter(True, "train on a GPU if there is one"),
        "mp_start_method": Parameter(
            None,
            "how processes of data loaders start",
            one_of(("fork", "spawn", "forkserver")),
        ),
        "backward_passes_per_step": Parameter(
            1, "batches whose gradients are added up before a step", _AT_LEAST_ONE
        ),
        "tensorflow_dataset_prefetch_buffer_size": Parameter(
            0, "batches that TensorFlow takes ahead", at_least(-1)
        ),
    }
)
class EstimatorParams(Declared):
    """Of an estimator."""


@declares(
    {
        "history": Parameter(None, "what the training has said of each epoch"),
        "model": Parameter(None, "what was trained"),
        "feature_columns": Parameter(None, "columns that the model gets"),
        "label_columns": Parameter(
            None,
            "columns that it predicts",
            setter="setLabelColoumns",
            getter="getLabelColumns",
        ),
        "run_id": Parameter(None, "name of the run"),
        "_metadata": Parameter(None, "what the columns are"),
        "outputCols": Parameter(None, "names of the columns with predictions"),
    }
)
class ModelParams(Declared):
    """Of a model."""
