"""Lightning's ``Trainer`` over Horovod: gradients are reduced by a ``DistributedOptimizer``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

import horovod.torch as hvd
from horovod.core import world
from horovod.lightning.library import LightningEnvironment, ParallelStrategy, rank_zero_only


class HorovodStrategy(ParallelStrategy):
    """Trains on the processes that ``horovodrun``, Spark or Ray has started, one device each.

        Trainer(strategy=HorovodStrategy(), accelerator="gpu", devices="auto")

    The constructor calls ``hvd.init``, so it blocks until all ranks have called it.

    Args:
        device: the device of this process. Without it the Trainer's ``accelerator`` and ``devices``
            decide: the rank with local rank ``i`` gets device ``i`` of them; with ``devices=1`` it
            gets the machine's GPU ``i``.
        compression: of the gradients that are sent, for example ``hvd.Compression.fp16``.
        optimizer_states: initial states of the optimizers, from a checkpoint of Lightning.
    """

    strategy_name = "horovod"
    optimizers: list[Any]

    def __init__(
        self,
        device: torch.device | None = None,
        compression: Any = None,
        optimizer_states: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        if device is not None:
            super().__init__(parallel_devices=[device])
        else:
            # Otherwise Lightning looks for a cluster, and loads MPI if mpi4py is installed.
            super().__init__(cluster_environment=LightningEnvironment())
        self._device = device
        self._compression = compression or hvd.Compression.none
        self._first_states = optimizer_states
        hvd.init()
        rank_zero_only.rank = hvd.rank()

    @property
    def global_rank(self) -> int:
        """Horovod's rank."""
        return hvd.rank()

    @property
    def local_rank(self) -> int:
        """Horovod's local rank."""
        return hvd.local_rank()

    @property
    def node_rank(self) -> int:
        """Horovod's cross rank."""
        return hvd.cross_rank()

    @property
    def world_size(self) -> int:
        """Horovod's size."""
        return hvd.size()

    @property
    def is_distributed(self) -> bool:
        """Whether there are other processes."""
        return hvd.size() > 1

    @property
    def root_device(self) -> torch.device:
        """The device of this process."""
        return self._device or device_of(self.parallel_devices or (), hvd.local_rank())

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """The shard of a dataset for this process."""
        return {"num_replicas": hvd.size(), "rank": hvd.rank()}

    def model_to_device(self) -> None:
        """Move the model to the device, and broadcast rank 0's weights."""
        self.model.to(self.root_device)
        hvd.broadcast_parameters(self.lightning_module.state_dict(), root_rank=0)

    def setup_optimizers(self, trainer: Any) -> None:
        """Wrap the optimizers of the module."""
        super().setup_optimizers(trainer)
        for optimizer, state in zip(self.optimizers, self._first_states or (), strict=False):
            optimizer.load_state_dict(state)
        distributed = [
            self._distributed(optimizer, place, trainer.accumulate_grad_batches)
            for place, optimizer in enumerate(self.optimizers)
        ]
        for config in self.lr_scheduler_configs:
            # The scheduler changes the parameter groups, which both optimizers share.
            place = self.optimizers.index(config.scheduler.optimizer)
            config.scheduler.optimizer = distributed[place]
        self.optimizers = distributed

    def _distributed(self, optimizer: Any, place: int, passes: int) -> Any:
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        named = [
            (f"optimizer{place}.{name}", parameter)
            for name, parameter in self.lightning_module.named_parameters()
            if id(parameter) in own
        ]
        return hvd.DistributedOptimizer(
            optimizer,
            named_parameters=named,
            compression=self._compression,
            backward_passes_per_step=passes,
        )

    def post_backward(self, closure_loss: torch.Tensor) -> None:
        """Reduce before gradients are clipped; with manual optimization ``step`` reduces."""
        loop = self.lightning_module.trainer.fit_loop.epoch_loop
        if self.lightning_module.automatic_optimization and not loop._should_accumulate():
            for optimizer in self.optimizers:
                optimizer.synchronize()

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Nothing to do: the optimizer counts passes and reduces the sum."""
        yield

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce a tensor over all ranks."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        name = str(reduce_op).lower().split(".")[-1]
        ops = {"mean": hvd.Average, "avg": hvd.Average, "sum": hvd.Sum, "max": hvd.Max}
        return hvd.allreduce(tensor.contiguous(), op={**ops, "min": hvd.Min}[name])

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks; not in a forked child."""
        if world.is_initialized():
            hvd.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The object of rank ``src``."""
        return hvd.broadcast_object(obj, root_rank=src)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> Any:
        """The tensors of all ranks, stacked."""
        with torch.set_grad_enabled(sync_grads):
            return hvd.allgather(tensor.unsqueeze(0).contiguous())


def device_of(devices: Sequence[torch.device], local_rank: int) -> torch.device:
    """The device of a local rank among those that the Trainer has selected."""
    if len(devices) == 1 and devices[0] == torch.device("cuda", 0):
        # ``devices=1`` counts the devices of one process; the processes take different ones.
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return devices[local_rank % len(devices)] if devices else torch.device("cpu")
