"""ResNet v1.5 of bottleneck blocks (He et al., arXiv 1512.03385), in nothing but torch.nn.

Used by ``synthetic_benchmark.py`` and ``imagenet.py``; in a script of your own take
``torchvision.models.resnet50()``, which has the same 161 parameters of 25.6 million elements.
"""

from collections.abc import Sequence

import torch
from torch import nn

__all__ = ["ResNet", "resnet50", "tiny_resnet"]


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions and a shortcut around them; the second has the stride."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * self.expansion
        self.residual = nn.Sequential(
            *convolution(in_channels, width, 1),
            nn.ReLU(inplace=True),
            *convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *convolution(width, out_channels, 1),
        )
        # A block that starts as the identity is easier to train, especially with large batches.
        nn.init.zeros_(self.residual[-1].weight)
        is_same_shape = stride == 1 and in_channels == out_channels
        self.shortcut = (
            nn.Identity()
            if is_same_shape
            else nn.Sequential(*convolution(in_channels, out_channels, 1, stride))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.residual(x) + self.shortcut(x))


class ResNet(nn.Module):
    """[n, 3, height, width] images to [n, ``class_count``] scores.

    ``depths`` says how many blocks each stage has; from one stage to the next the images are half
    as high and wide and have twice the channels, beginning with ``width``.
    """

    def __init__(self, depths: Sequence[int], class_count: int, width: int = 64) -> None:
        super().__init__()
        layers = [*convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        in_channels = width
        for stage, depth in enumerate(depths):
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(Bottleneck(in_channels, width << stage, stride))
                in_channels = (width << stage) * Bottleneck.expansion
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(in_channels, class_count)]
        self.layers = nn.Sequential(*layers)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def convolution(in_channels: int, out_channels: int, size: int, stride: int = 1) -> list[nn.Module]:
    """A convolution with padding, and its batch normalisation."""
    layer = nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return [layer, nn.BatchNorm2d(out_channels)]


def resnet50(class_count: int = 1000) -> ResNet:
    return ResNet((3, 4, 6, 3), class_count)


def tiny_resnet(class_count: int) -> ResNet:
    """A small network of this kind with 9362 weights, for images of 32 x 32."""
    return ResNet((1, 1), class_count, width=8)
