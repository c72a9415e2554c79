"""The contestants of ``ddp.py``: torch.distributed on a backend, or nothing in its place."""

from __future__ import annotations

from typing import Any

from contestants import Gloo, Operation

__all__ = ["Alone", "DdpAlone", "OnGloo", "OnHorovod", "WithViews"]


class OnGloo(Gloo):
    """torch.distributed on Gloo."""

    def message(self, tensor: Any) -> Operation:
        """Half of a ping-pong: one message, to the other of two ranks or from it."""
        send, receive, peer = self._dist.send, self._dist.recv, 1 - self.rank
        is_sender = self.rank == 0

        def run() -> None:
            nonlocal is_sender
            if is_sender:
                send(tensor, peer)
            else:
                receive(tensor, peer)
            is_sender = not is_sender

        return run

    def shard(self, layers: list[Any]) -> Any:
        """A model of which each rank keeps a part of every layer."""
        from torch.distributed.fsdp import fully_shard

        mesh = self._dist.init_device_mesh("cpu", (self.size,))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(self._torch.nn.Sequential(*layers), mesh=mesh)


class OnHorovod(OnGloo):
    """torch.distributed on ours."""

    backend = "horovod"


class WithViews(Gloo):
    """DDP on ours, whose gradients are views of its buckets: it does not copy them back."""

    backend = "horovod"

    def blocking(self, tensor: Any) -> None:
        """No operation to measure."""

    def distribute(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        ddp = self._torch.nn.parallel.DistributedDataParallel
        return ddp(model, gradient_as_bucket_view=True), optimizer


class Alone(OnGloo):
    """No communication: a rank copies its tensor instead, and trains alone."""

    def blocking(self, tensor: Any) -> Operation:
        copy = self.tensor(tensor.numel())
        return lambda: copy.copy_(tensor)

    message = blocking

    def distribute(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        return model, optimizer

    def shard(self, layers: list[Any]) -> Any:
        return self._torch.nn.Sequential(*layers)


class DdpAlone(Gloo):
    """DDP whose hook reduces nothing: what DDP itself costs, with any backend."""

    def blocking(self, tensor: Any) -> None:
        """No operation to measure."""

    def distribute(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        wrapped, optimizer = super().distribute(model, optimizer)
        make_future = self._torch.futures.Future

        def reduce_nothing(_, bucket):  # type: ignore[no-untyped-def]  # DDP checks annotations
            future = make_future()
            future.set_result(bucket.buffer())
            return future

        wrapped.register_comm_hook(None, reduce_nothing)
        return wrapped, optimizer
