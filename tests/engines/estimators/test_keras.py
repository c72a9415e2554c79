"""``KerasEstimator`` on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    # A warning inside Keras's TensorFlow backend.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


def _estimator(store: Any, **changes: Any) -> Any:
    import keras

    from horovod.spark.keras import KerasEstimator

    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    options = {
        "num_proc": 2,
        "store": store,
        "model": model,
        "optimizer": keras.optimizers.Adam(0.005),
        "loss": "sparse_categorical_crossentropy",
        "metrics": ["accuracy"],
        "feature_cols": ["features"],
        "label_cols": ["label"],
        "validation": "is_val",
        "sample_weight_col": "weight",
        "epochs": 6,
        "random_seed": 1,
        "partitions_per_process": 2,
        "verbose": 0,
        **changes,
    }
    return KerasEstimator(**options)


def test_it_learns_goes_on_is_saved_and_predicts(
    digits: Any, store: Any, tmp_path: Path, here: Any, accuracy_of: Any
) -> None:
    from horovod.spark.keras import KerasEstimator, KerasModel

    _estimator(store).save(str(tmp_path / "estimator"))
    loaded = KerasEstimator.load(str(tmp_path / "estimator")).setStore(store)
    model = loaded.fit(digits)
    history = model.getHistory()
    assert set(history) >= {"loss", "val_loss", "accuracy", "val_accuracy"}
    assert len(history["loss"]) == 6
    assert history["loss"][-1] < history["loss"][0]
    # It was multiplied by the number of processes during training only.
    assert float(model.getModel().optimizer.learning_rate) == pytest.approx(0.005)
    assert store.exists(store.get_checkpoint_path(model.getRunId()))
    assert store.fs.find(store.get_logs_path(model.getRunId()))

    model.save(str(tmp_path / "model"))
    assert accuracy_of(KerasModel.load(str(tmp_path / "model"))) > 0.8

    options = {"run_id": model.getRunId(), "epochs": 1, "num_proc": None, "backend": here}
    again = loaded.copy({loaded.getParam(name): value for name, value in options.items()}).fit(
        digits
    )
    middle = (history["loss"][0] + min(history["loss"])) / 2
    assert again.getHistory()["loss"][0] < middle


def test_unusable_params_are_refused_before_the_training(digits: Any, store: Any) -> None:
    for changes, message in (
        ({"model": "a model"}, "keras.Model"),
        ({"loss": None}, "Loss parameter is required"),
        ({"optimizer": None}, "Optimizer parameter is required"),
        ({"feature_cols": ["features", "mean"]}, "2 feature columns for 1 inputs"),
        ({"feature_cols": ["mean"]}, "has 1 numbers"),
        ({"label_cols": ["label", "mean"]}, "2 label columns for 1 outputs"),
    ):
        with pytest.raises(ValueError, match=message):
            _estimator(store, **changes).fit(digits)
