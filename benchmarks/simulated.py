"""``horovod.simulate`` against what others have published: nothing is fitted.

All inputs are those of the publication, or of the one named beside them: the number of ranks and
hosts, the link, the model, its batch, the speed of one device. NCCL 2.0 had rings only. Jitter is
in no publication, so there are two columns: none, and the default of ``horovodrun --simulate``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from command_line import make_parser

from horovod.simulate import Cluster, Costs, Network, Options, network_named, of_model, predict

_JITTER = 0.02
_CLOSE = 0.05
# TensorFlow's benchmarks of 2017, synthetic data, one P100: images per second by model and batch.
# ResNet-101 is not among them: its speed per multiply-add lies between ResNet-50's and -152's.
_P100 = {"inception3": 142.0, "vgg16": 154.0, "resnet101": 125.0, "resnet50 at 32": 195.0}
# One P100 sends and receives through PCIe 3 at 10 GB/s or through NVLink, faster than the links.
_GPUS = Costs(tensor_s=1e-6, bucket_s=50e-6, byte_s=0.1e-9, link_byte_s=0.0, source="PCIe 3 x16")
_FACEBOOK = Network("50 Gbit/s Ethernet", 0.97 * 50e9 / 8, 10e-6, 1e-6, "arXiv 1706.02677")


@dataclass(frozen=True)
class Row:
    """A published efficiency."""

    source: str
    model: str
    batch: int
    rate: float
    cluster: Cluster
    published: float


def rows() -> list[Row]:
    """What is compared."""
    uber = Cluster(128, 4, network_named("25gbit-roce"), _GPUS)
    horovod = "arXiv 1802.05799, 512 GPUs"
    return [
        Row(horovod, "resnet101", 64, _P100["resnet101"], uber, 0.90),
        Row(horovod, "inception3", 64, _P100["inception3"], uber, 0.90),
        Row(horovod, "vgg16", 64, _P100["vgg16"], uber, 0.68),
        Row(
            "arXiv 1706.02677, 256 GPUs",
            "resnet50",
            32,
            _P100["resnet50 at 32"],
            Cluster(32, 8, _FACEBOOK, _GPUS),
            0.90,
        ),
    ]


def main() -> int:
    parser = make_parser(__doc__)
    args = parser.parse_args()
    found = []
    print(f"{'publication':28} {'model':12} published  no jitter  2 % jitter  difference")
    for row in rows():
        workload = of_model(row.model, row.batch, row.rate)
        plain, jittery = (
            predict(workload, row.cluster, Options(algorithm="ring"), jitter).efficiency
            for jitter in (0.0, _JITTER)
        )
        difference = jittery - row.published
        mark = "" if abs(difference) <= _CLOSE else "  more than 5 points"
        print(
            f"{row.source:28} {row.model:12} {row.published:9.0%} {plain:10.1%} {jittery:11.1%} "
            f"{100 * difference:+10.1f}{mark}"
        )
        found.append({"model": row.model, "published": row.published, "predicted": jittery})
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
