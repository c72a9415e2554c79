"""The models' gradients: against what their publications and libraries say."""

from __future__ import annotations

import pytest

from horovod.simulate.architectures import layers_of
from horovod.simulate.workload import of_model


@pytest.mark.parametrize(
    ("name", "parameters", "tensors"),
    [
        ("resnet50", 25_557_032, 161),
        ("resnet101", 44_549_160, 314),
        ("vgg16", 138_357_544, 32),
        ("inception3", 23_834_568, 284),
        ("bert-large", 335_141_888, 391),
        ("gpt2", 124_439_808, 148),
    ],
)
def test_parameters(name: str, parameters: int, tensors: int) -> None:
    layers = layers_of(name)
    assert sum(sum(layer.parameters) for layer in layers) == parameters
    assert sum(len(layer.parameters) for layer in layers) == tensors


@pytest.mark.parametrize(
    ("name", "billions"), [("resnet50", 4.09), ("resnet101", 7.80), ("vgg16", 15.47)]
)
def test_work(name: str, billions: float) -> None:
    work = sum(layer.work for layer in layers_of(name))
    assert work / 1e9 == pytest.approx(billions, abs=0.01)


def test_gradients_come_in_the_order_of_the_backward_pass() -> None:
    workload = of_model("vgg16", 64, 128)
    assert workload.alone_s == 0.5
    assert workload.gradients[0].name == "fc8.1"
    assert workload.gradients[-1].name == "conv1_1.0"
    times = [gradient.ready_s for gradient in workload.gradients]
    assert times == sorted(times)
    assert times[0] > 0.5 / 3
    assert times[-1] == pytest.approx(0.5)
    assert workload.size_bytes == 4 * 138_357_544


def test_other_models_and_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no model 'vgg'; there are .*vgg16"):
        layers_of("vgg")
    with pytest.raises(ValueError, match="must be positive"):
        of_model("vgg16", 64, 0)
