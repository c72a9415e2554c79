"""The gradients of well-known models, computed from the definitions of their architectures.

A layer has the parameters and the multiply-adds of one sample's forward pass, from which the time
of its backward pass follows. Sources: ResNet (He et al., arXiv 1512.03385; the stride is in the
3x3 convolution), VGG-16 (arXiv 1409.1556), Inception V3 without the auxiliary classifier (arXiv
1512.00567), BERT (arXiv 1810.04805), GPT-2 (Radford et al., 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """``parameters``: elements of each tensor. ``work``: multiply-adds for one sample."""

    name: str
    parameters: tuple[int, ...]
    work: float


def layers_of(name: str) -> list[Layer]:
    """The layers of a model in the order of the forward pass.

    Raises:
        ValueError: no model has this name; the text names those that there are.
    """
    if name not in ARCHITECTURES:
        raise ValueError(f"no model {name!r}; there are {', '.join(sorted(ARCHITECTURES))}")
    return list(ARCHITECTURES[name]())


def _dense(name: str, inputs: int, outputs: int, rows: int = 1) -> Layer:
    return Layer(name, (inputs * outputs, outputs), float(rows) * inputs * outputs)


class _Images:
    """Layers of a convolutional network; ``size`` is the edge of the image at this point."""

    def __init__(self, size: int, channels: int) -> None:
        self.size = size
        self.channels = channels

    def pool(self, kernel: int, stride: int, pad: int = 0) -> None:
        self.size = (self.size + 2 * pad - kernel) // stride + 1

    def conv(
        self,
        name: str,
        outputs: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        pad: bool = True,
        inputs: int | None = None,
        has_norm: bool = True,
    ) -> Layer:
        """A convolution, with a batch norm in place of a bias; ``inputs``: not the last layer's."""
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        inputs = self.channels if inputs is None else inputs
        longest = max(height, width)
        self.size = self.size // stride if pad else (self.size - longest) // stride + 1
        self.channels = outputs
        weights = inputs * outputs * height * width
        rest = (outputs, outputs) if has_norm else (outputs,)
        return Layer(name, (weights, *rest), float(weights) * self.size**2)


def _resnet(blocks: tuple[int, ...]) -> Iterator[Layer]:
    net = _Images(224, 3)
    yield net.conv("conv1", 64, 7, 2)
    net.pool(3, 2, 1)
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            name, stride = f"layer{stage + 1}.{block}", 2 if stage and not block else 1
            inputs = net.channels
            yield net.conv(f"{name}.conv1", width, 1)
            yield net.conv(f"{name}.conv2", width, 3, stride)
            yield net.conv(f"{name}.conv3", 4 * width, 1)
            if not block:
                yield net.conv(f"{name}.downsample", 4 * width, 1, inputs=inputs)
    yield _dense("fc", 2048, 1000)


def _vgg16() -> Iterator[Layer]:
    net = _Images(224, 3)
    for stage, (count, width) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))):
        for index in range(count):
            yield net.conv(f"conv{stage + 1}_{index + 1}", width, 3, has_norm=False)
        net.pool(2, 2)
    yield _dense("fc6", 512 * 7 * 7, 4096)
    yield _dense("fc7", 4096, 4096)
    yield _dense("fc8", 4096, 1000)


# Branches of Inception V3's modules: (outputs, kernel) for each convolution of a branch.
_Branch = tuple[tuple[int, int | tuple[int, int]], ...]


def _module(net: _Images, name: str, branches: tuple[_Branch, ...], split: int = 0) -> list[Layer]:
    """Branches side by side; with ``split`` the last two of some branches have the same input."""
    inputs, size, layers = net.channels, net.size, []
    for number, branch in enumerate(branches):
        net.channels = inputs
        for index, (outputs, kernel) in enumerate(branch):
            net.size = size
            before = net.channels
            if split >> number & 1 and index == len(branch) - 1:
                before = branch[-3][0]
            layers.append(net.conv(f"{name}.{number}.{index}", outputs, kernel, inputs=before))
    kept = sum(branch[-1][0] for branch in branches)
    kept += sum(branch[-2][0] for number, branch in enumerate(branches) if split >> number & 1)
    net.channels, net.size = kept, size
    return layers


def _reduction(net: _Images, name: str, branches: tuple[_Branch, ...]) -> list[Layer]:
    """Branches whose last convolution halves the image, beside a pooling."""
    inputs, size, layers = net.channels, net.size, []
    for number, branch in enumerate(branches):
        net.channels, net.size = inputs, size
        for index, (outputs, kernel) in enumerate(branch):
            is_last = index == len(branch) - 1
            step = {"stride": 2, "pad": False} if is_last else {}
            layers.append(net.conv(f"{name}.{number}.{index}", outputs, kernel, **step))  # type: ignore[arg-type]
    net.channels = inputs + sum(branch[-1][0] for branch in branches)
    return layers


def _inception_v3() -> Iterator[Layer]:
    net = _Images(299, 3)
    yield net.conv("1a", 32, 3, 2, pad=False)
    yield net.conv("2a", 32, 3, pad=False)
    yield net.conv("2b", 64, 3)
    net.pool(3, 2)
    yield net.conv("3b", 80, 1)
    yield net.conv("4a", 192, 3, pad=False)
    net.pool(3, 2)
    for name, pooled in (("5b", 32), ("5c", 64), ("5d", 64)):
        yield from _module(
            net,
            name,
            (((64, 1),), ((48, 1), (64, 5)), ((64, 1), (96, 3), (96, 3)), ((pooled, 1),)),
        )
    yield from _reduction(net, "6a", (((384, 3),), ((64, 1), (96, 3), (96, 3))))
    for name, width in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        row, column = (1, 7), (7, 1)
        yield from _module(
            net,
            name,
            (
                ((192, 1),),
                ((width, 1), (width, row), (192, column)),
                ((width, 1), (width, column), (width, row), (width, column), (192, row)),
                ((192, 1),),
            ),
        )
    branches: tuple[_Branch, ...] = (
        ((192, 1), (320, 3)),
        ((192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3)),
    )
    yield from _reduction(net, "7a", branches)
    for name in ("7b", "7c"):
        yield from _module(
            net,
            name,
            (
                ((320, 1),),
                ((384, 1), (384, (1, 3)), (384, (3, 1))),
                ((448, 1), (384, 3), (384, (1, 3)), (384, (3, 1))),
                ((192, 1),),
            ),
            split=0b0110,
        )
    yield _dense("fc", 2048, 1000)


def _norm(name: str, width: int) -> Layer:
    return Layer(name, (width, width), 0.0)


def _attention(name: str, width: int, rows: int) -> Iterator[Layer]:
    for part in ("query", "key", "value", "output"):
        yield _dense(f"{name}.{part}", width, width, rows)
    yield Layer(f"{name}.scores", (), 2.0 * rows * rows * width)


def _bert_large() -> Iterator[Layer]:
    width, rows = 1024, 512
    yield Layer("embeddings", (30522 * width, 512 * width, 2 * width), 0.0)
    yield _norm("embeddings.norm", width)
    for block in range(24):
        name = f"layer.{block}"
        yield from _attention(f"{name}.attention", width, rows)
        yield _norm(f"{name}.attention.norm", width)
        yield _dense(f"{name}.intermediate", width, 4 * width, rows)
        yield _dense(f"{name}.output", 4 * width, width, rows)
        yield _norm(f"{name}.norm", width)
    yield _dense("pooler", width, width)


def _gpt2() -> Iterator[Layer]:
    width, rows, words = 768, 1024, 50257
    yield Layer("embeddings", (words * width, 1024 * width), 0.0)
    for block in range(12):
        name = f"h.{block}"
        yield _norm(f"{name}.ln_1", width)
        yield _dense(f"{name}.attn.c_attn", width, 3 * width, rows)
        yield Layer(f"{name}.attn.scores", (), 2.0 * rows * rows * width)
        yield _dense(f"{name}.attn.c_proj", width, width, rows)
        yield _norm(f"{name}.ln_2", width)
        yield _dense(f"{name}.mlp.c_fc", width, 4 * width, rows)
        yield _dense(f"{name}.mlp.c_proj", 4 * width, width, rows)
    yield _norm("ln_f", width)
    # The output has the weights of the embeddings, so its gradient comes with theirs.
    yield Layer("output", (), float(rows) * width * words)


ARCHITECTURES: dict[str, Callable[[], Iterator[Layer]]] = {
    "bert-large": _bert_large,
    "gpt2": _gpt2,
    "inception3": _inception_v3,
    "resnet50": lambda: _resnet((3, 4, 6, 3)),
    "resnet101": lambda: _resnet((3, 4, 23, 3)),
    "vgg16": _vgg16,
}
