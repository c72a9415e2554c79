"""``horovod.simulate`` against what others have published: nothing is fitted.

All inputs are those of the publication, or of the one named beside them: the number of ranks and
hosts, the link, the algorithm, the model, its batch, the speed of one device. Jitter is in no
publication, so there are two columns: none, and the default of ``horovodrun --simulate``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from command_line import make_parser

from horovod.simulate import Cluster, Costs, Network, Options, network_named, of_model, predict

_JITTER = 0.02
_CLOSE = 0.05
# TensorFlow's benchmarks of 2017, synthetic data, one P100: images per second by model and batch.
# ResNet-101 is not among them: its speed per multiply-add lies between ResNet-50's and -152's.
_P100 = {"inception3": 142.0, "vgg16": 154.0, "resnet101": 125.0, "resnet50 at 32": 195.0}
# Lambda's benchmarks of 2019, one V100, float32. ResNet-101 as above. VGG-16: the P100's, by which
# a V100 is faster with the two others. float16: from its "59 % faster" and "55 % as fast".
_V100 = {"resnet50": 405.0, "resnet101": 220.0, "vgg16": 282.0, "resnet50 in float16": 850.0}
# 6.6 minutes for 90 times ImageNet on 2048 P40, divided by the efficiency.
_P40 = 162.0
# One P100 sends and receives through PCIe 3 at 10 GB/s or through NVLink, faster than the links.
_GPUS = Costs(tensor_s=1e-6, bucket_s=50e-6, byte_s=0.1e-9, link_byte_s=0.0, source="PCIe 3 x16")
_NVLINK = replace(_GPUS, byte_s=0.02e-9, source="NVLink 2")
_FACEBOOK = Network("50 Gbit/s Ethernet", 0.97 * 50e9 / 8, 10e-6, 1e-6, "arXiv 1706.02677")
_FDR = Network("56 Gbit/s InfiniBand", 0.97 * 56e9 / 8, 5e-6, 1e-6, "arXiv 1711.04325")
_ROCE = Network("100 Gbit/s RoCE", 0.97 * 100e9 / 8, 5e-6, 1e-6, "arXiv 1807.11205")
_EDR = Network("2 x EDR InfiniBand", 0.97 * 200e9 / 8, 2e-6, 0.5e-6, "arXiv 1811.05233")
_CLOUD = Network("20 Gbit/s TCP", 0.94 * 20e9 / 8, 25e-6, 5e-6, "BytePS")
# Faster links did not make its steps faster than those of 25 Gbit/s.
_AWS = Network("100 Gbit/s TCP, used up to 25", 0.94 * 25e9 / 8, 25e-6, 5e-6, "arXiv 2006.10103")
_SLOWER = 1.15  # its computing, beside reductions
_RING, _HALF = Options(algorithm="ring"), 0.5


@dataclass(frozen=True)
class Row:
    """A published efficiency, or one that the published cannot exceed.

    ``rate``: samples per second of one device. ``published`` is None where there is but ``most``.
    ``slower``: by which factor computing takes longer in the cluster than alone.
    """

    source: str
    model: str
    batch: int
    rate: float
    cluster: Cluster
    published: float | None
    options: Options = _RING
    most: float = 1.0
    slower: float = 1.0

    def differs(self, predicted: float) -> float:
        """By how much the prediction is too high."""
        return predicted - (self.most if self.published is None else self.published)

    def is_close(self, predicted: float) -> bool:
        """Whether it is within five points, or below what it cannot exceed."""
        difference = self.differs(predicted)
        return (self.published is None or difference >= -_CLOSE) and difference <= _CLOSE


def rows() -> list[Row]:
    """What is compared; NCCL 2.0 of the first had rings only."""
    return [*_with_efficiencies(), *_with_ranges()]


def _with_efficiencies() -> list[Row]:
    roce = network_named("25gbit-roce")
    uber, small = Cluster(128, 4, roce, _GPUS), Cluster(4, 4, roce, _GPUS)
    after_all = replace(_GPUS, overlap=False)
    horovod = "arXiv 1802.05799, 512 GPUs"
    at_32 = _P100["resnet50 at 32"]
    return [
        Row(horovod, "resnet101", 64, _P100["resnet101"], uber, 0.90),
        Row(horovod, "inception3", 64, _P100["inception3"], uber, 0.90),
        Row(horovod, "vgg16", 64, _P100["vgg16"], uber, 0.68),
        Row(
            "Horovod's documentation, 16 GPUs",
            "resnet101",
            64,
            _P100["resnet101"],
            small,
            1656.82 / 16 / _P100["resnet101"],
        ),
        Row(
            "arXiv 1706.02677, 256 GPUs",
            "resnet50",
            32,
            at_32,
            Cluster(32, 8, _FACEBOOK, _GPUS),
            0.90,
        ),
        Row(
            "arXiv 1711.04325, 1024 GPUs",
            "resnet50",
            32,
            at_32,
            Cluster(128, 8, _FDR, after_all),
            0.80,
            Options(algorithm="ring", wire=_HALF),
        ),
        Row(
            "arXiv 1807.11205, 2048 GPUs",
            "resnet50",
            32,
            _P40,
            Cluster(256, 8, _ROCE, _GPUS),
            0.879,
            Options(algorithm="hierarchical", wire=_HALF),
        ),
        Row(
            "arXiv 1811.05233, 1088 GPUs",
            "resnet50",
            32,
            _V100["resnet50 in float16"],
            Cluster(272, 4, _EDR, _NVLINK),
            0.9162,
            Options(algorithm="torus", wire=_HALF),
        ),
    ]


def _with_ranges() -> list[Row]:
    """Publications of which only the range over models, or a ratio of two systems, is known here.

    BytePS is 1.44 and 2 times as fast as Horovod. Nothing is faster than all devices alone.
    """
    aws, cloud = Cluster(8, 8, _AWS, _NVLINK), Cluster(8, 8, _CLOUD, _NVLINK)
    highest, lowest = "arXiv 2006.10103, highest", "arXiv 2006.10103, lowest"
    byteps = "BytePS, on Horovod, 64 GPUs"
    return [
        Row(highest, "resnet50", 64, _V100["resnet50"], aws, 0.76, slower=_SLOWER),
        Row(lowest, "vgg16", 64, _V100["vgg16"], aws, 0.56, slower=_SLOWER),
        Row(byteps, "resnet50", 64, _V100["resnet50"], cloud, None, most=1 / 1.44),
        Row(byteps, "vgg16", 64, _V100["vgg16"], cloud, None, most=1 / 2),
    ]


def main() -> int:
    parser = make_parser(__doc__)
    args = parser.parse_args()
    found = []
    print(f"{'publication':34} {'model':12} published  no jitter  2 % jitter  difference")
    for row in rows():
        plain, jittery = (_predicted(row, jitter) for jitter in (0.0, _JITTER))
        known = row.most if row.published is None else row.published
        mark = "" if row.is_close(jittery) else "  more than 5 points"
        shown = f"{'<= ' if row.published is None else ''}{known:.1%}"
        print(
            f"{row.source:34} {row.model:12} {shown:>9} {plain:10.1%} {jittery:11.1%} "
            f"{100 * row.differs(jittery):+10.1f}{mark}"
        )
        found.append({"model": row.model, "published": known, "predicted": jittery})
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=2) + "\n")
    return 0


def _predicted(row: Row, jitter: float) -> float:
    workload = of_model(row.model, row.batch, row.rate / row.slower)
    return predict(workload, row.cluster, row.options, jitter).efficiency / row.slower


if __name__ == "__main__":
    sys.exit(main())
