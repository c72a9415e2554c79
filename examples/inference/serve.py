"""Read digits with networks that other examples have trained and exported; Horovod is not needed.

    horovodrun -np 2 python examples/pytorch/digits.py --export exported
    horovodrun -np 2 python examples/tensorflow/digits.py --export exported/saved_model
    horovodrun -np 2 python examples/tensorflow/digits_session.py --export exported/graph.pb
    horovodrun -np 2 python examples/keras/digits_fit.py --export exported/digits.keras
    python examples/inference/serve.py exported/*

Prints the accuracy of each network on the held-back images. Every kind of file needs only its own
framework.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Network = Callable[[np.ndarray], np.ndarray]  # images [n, 8, 8, 1] -> scores [n, 10]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", type=Path, nargs="+", help="what the examples have exported")
    parser.add_argument("--min-accuracy", type=float, default=0.9)
    args = parser.parse_args()
    images, labels = test_data()
    is_good = True
    for path in args.paths:
        accuracy = float((load(path)(images).argmax(axis=1) == labels).mean())
        is_good = is_good and accuracy >= args.min_accuracy
        print(f"{path.name}: test accuracy {accuracy:.4f}")
    print("Horovod is", "loaded" if sys.modules.get("horovod") else "not loaded")
    return 0 if is_good else 1


def test_data() -> tuple[np.ndarray, np.ndarray]:
    """The held-back images, [n, 8, 8, 1] floats in 0..1, and their labels."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    _, test_x, _, test_y = train_test_split(images, labels, test_size=0.25, random_state=0)
    return test_x, test_y


def load(path: Path) -> Network:
    if path.is_dir():
        return saved_model(path)
    return LOADERS[path.suffix](path)


def weights(path: Path) -> Network:
    """Weights without a network: the program that serves has the network's code."""
    import torch
    from torch import nn

    network = nn.Sequential(
        *(nn.Conv2d(1, 32, kernel_size=3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, kernel_size=3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.4)),
        *(nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, 10)),
    )
    network.load_state_dict(torch.load(path, weights_only=True))
    return on_tensors(network.eval())


def program(path: Path) -> Network:
    import torch

    return on_tensors(torch.export.load(path).module())


def script(path: Path) -> Network:
    import torch

    return on_tensors(torch.jit.load(path))


def on_tensors(network: Callable) -> Network:
    """PyTorch has the channels first."""
    import torch

    def scores(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return network(torch.from_numpy(images.transpose(0, 3, 1, 2))).numpy()

    return scores


def saved_model(path: Path) -> Network:
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    return lambda images: loaded.serve(images).numpy()


def frozen_graph(path: Path) -> Network:
    import tensorflow.compat.v1 as tf

    definition = tf.GraphDef.FromString(path.read_bytes())
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(definition, name="")
    session = tf.Session(graph=graph)
    return lambda images: session.run("logits:0", {"images:0": images})


def keras_file(path: Path) -> Network:
    import keras

    # Without the optimizer: only training needs it.
    model = keras.models.load_model(path, compile=False)
    return lambda images: model.predict(images, verbose=0)


LOADERS: dict[str, Callable[[Path], Network]] = {
    ".pt": weights,
    ".pt2": program,
    ".ts": script,
    ".pb": frozen_graph,
    ".keras": keras_file,
}

if __name__ == "__main__":
    sys.exit(main())
