"""What the binding says of tensors on GPUs; the tensors themselves are told, not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from horovod import _native
from horovod.core.operations import Dtype, Intent, Kind
from horovod.torch import adapter

ALLREDUCE = _native.Operation(int(Kind.ALLREDUCE))


class Engine:
    """Notes how it is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *words: self.calls.append((name, *words)) or 1


def tensor(device: str, **changes: Any) -> Any:
    return SimpleNamespace(
        dtype=torch.float16,
        layout=torch.strided,
        device=torch.device(device),
        shape=(2, 3),
        is_contiguous=lambda: True,
        data_ptr=lambda: 4096,
        is_cuda=device.startswith("cuda"),
        **changes,
    )


@pytest.fixture
def attributes() -> Any:
    return adapter._AttributeAdapter()


def test_an_older_torch_names_device_and_streams(attributes: Any) -> None:
    engine, gpu, host = Engine(), tensor("cuda:1"), tensor("cpu")
    attributes.submit(engine, ALLREDUCE, "x", gpu, None, Intent.WAIT)
    attributes.submit_batch(engine, ALLREDUCE, ["y", "z"], [gpu, host], Intent.COMPUTE)
    attributes.submit_group(engine, ALLREDUCE, "g", [gpu], None, Intent.COMPUTE)
    one, many, group = engine.calls
    assert one == (
        *("submit", ALLREDUCE, "x", 4096, 0, [2, 3], Dtype.FLOAT16, Intent.WAIT, ()),
        *(1, attributes._streams, 0),
    )
    assert many[-3:] == ([1, -1], attributes._streams, [])
    assert group[-5:] == ([1], attributes._streams, [], [], [])


def test_other_devices_are_refused(attributes: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^allreduce 'x': .* nor a CUDA GPU's; move it with \.cpu\(\)"
    ):
        attributes.submit(Engine(), ALLREDUCE, "x", tensor("meta"), None, Intent.WAIT)


def test_an_older_torch_says_what_to_do_with_a_sparse_tensor(attributes: Any) -> None:
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(ValueError, match=r"^allreduce 'x': .*sparse_as_dense=True"):
        attributes.submit(Engine(), ALLREDUCE, "x", sparse, None, Intent.WAIT)


@pytest.mark.parametrize(
    ("device", "has_cuda", "is_kept"),
    [("cuda:0", True, True), ("cuda:0", False, False), ("cpu", True, False)],
)
def test_what_the_engine_does_not_reach_is_copied(
    device: str, has_cuda: bool, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "cuda_built", lambda: has_cuda)
    given = tensor(device, cpu=lambda: "copy")
    assert adapter.within_reach(given) is (given if is_kept else "copy")


def test_a_result_on_a_gpu_becomes_memory_of_torch(
    attributes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def empty(shape: Any, dtype: torch.dtype, device: torch.device) -> Any:
        made.append((shape, dtype, device))
        return SimpleNamespace(data_ptr=lambda: 512, nbytes=24)

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(adapter, "_current_stream", lambda device: 70 + device)
    copies: list[Any] = []
    output: Any = SimpleNamespace(device=1, shape=[2, 3], copy_to=lambda *to: copies.append(to))
    attributes.from_output(output, Dtype.INT32)
    assert made == [([2, 3], torch.int32, torch.device("cuda", 1))]
    assert copies == [(512, 24, 71)]
