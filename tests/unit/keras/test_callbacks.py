"""Callbacks that communicate nothing."""

import numpy as np

import horovod.keras as hvd
from horovod._keras import callbacks


def test_metrics_are_logged_for_the_report(monkeypatch):
    logged = []
    monkeypatch.setattr(
        callbacks, "log_metrics", lambda *entry, samples: logged.append((*entry, samples))
    )
    callback = hvd.callbacks.LogMetricsCallback(batch_size=8)
    for loss in (2.0, np.float32(1.5)):
        callback.on_train_batch_end(0, {"loss": loss, "note": "text", "vector": np.ones(3)})
    callback.on_epoch_end(0, {"loss": 1.5, "val_loss": 1.75})
    assert logged == [({"loss": 2.0}, 0, 8), ({"loss": 1.5}, 1, 8), ({"val_loss": 1.75}, 2, 0)]
