"""The training in each process of a ``TorchEstimator``."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle
import torch

import horovod.torch as hvd
from horovod.spark.common.plan import Plan, gpu_number
from horovod.spark.torch.outputs import Loss, Tensors, inputs_of, losses_of, matched, outputs_of

# Outputs, labels in the outputs' shapes, and the loss.
Outcome = tuple[Tensors, Tensors, torch.Tensor]


class TorchResult(NamedTuple):
    """The result of rank 0.

    ``state`` is from ``state_bytes``; ``sizes`` are the numbers in one row of each output.
    """

    history: list[dict[str, Any]]
    state: bytes
    sizes: list[int]
    floats: str


def train(plan: Plan, trained: bytes, checkpoint: str | None) -> TorchResult | None:
    """Train on this process's shard; None on ranks other than 0.

    ``trained`` is the pickled model and optimizer. They begin in the state of the checkpoint at a
    path, if given.
    """
    hvd.init()
    plan.prepare_process()
    device = pick_device(plan.params["use_gpu"])
    seed = plan.params["random_seed"]
    if seed is not None:
        torch.manual_seed(seed + hvd.rank())
    model, optimizer = cloudpickle.loads(trained)
    if checkpoint is not None:
        load_state(plan.remote.store.read(checkpoint), model, optimizer)
    trainer = _Trainer(plan, model, optimizer, device)
    with plan.open_data(hvd.rank(), hvd.size(), trainer.floats) as data:
        train_data = data.train_data()
        val_data = data.val_data() if plan.has_val else None
        history = []
        for epoch in range(plan.params["epochs"]):
            row: dict[str, Any] = {"epoch": epoch, "train": trainer.run_epoch(train_data)}
            if val_data is not None:
                row["validation"] = trainer.validate(val_data)
            history.append(row)
            trainer.finish_epoch(row)
    if hvd.rank() != 0:
        return None
    return TorchResult(history, trainer.state(), trainer.sizes, trainer.floats)


class _Trainer:
    """Model, optimizer and loss on a device."""

    def __init__(
        self,
        plan: Plan,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
    ) -> None:
        self._plan = plan
        self._params = plan.params
        self._device = device
        self.sizes: list[int] = []
        self._passes = 0
        self._model = model
        self.floats = float_dtype(self._model)
        self._model.to(device)
        adopt(optimizer, self._model)
        hvd.broadcast_parameters(self._model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        self._optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=self._model.named_parameters(),
            compression=self._params["gradient_compression"] or hvd.Compression.none,
            backward_passes_per_step=self._params["backward_passes_per_step"],
        )
        losses = losses_of(
            self._params["loss"], self._params["loss_constructors"], len(plan.labels)
        )
        self._loss = Loss(losses, self._params["loss_weights"], has_rows=plan.weight is not None)
        self._metrics = named_metrics(self._params["metrics"], plan.labels)

    def run_epoch(self, data: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """One epoch of steps; means over all ranks."""
        self._model.train()
        step = self._step if self._params["train_minibatch_fn"] is None else self._own_step
        means = _Means(self._device)
        for batch in data:
            self._add(means, *step(*self._parts(batch)))
        return means.over_ranks("train")

    @torch.no_grad()
    def validate(self, data: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """One epoch without steps; means over the rows of all ranks."""
        self._model.eval()
        means = _Means(self._device)
        for batch in data:
            inputs, labels, weights = self._parts(batch)
            outputs, labels = self._transformed(self._model(*inputs), labels)
            self._add(means, outputs, labels, self._loss(outputs, labels, weights))
        return means.over_ranks("validation")

    def finish_epoch(self, row: dict[str, Any]) -> None:
        """On rank 0: write the checkpoint, call the callbacks, print the row."""
        if hvd.rank() != 0:
            return
        remote = self._plan.remote
        if remote.checkpoint_path is not None:
            remote.store.write(remote.checkpoint_path, self.state())
        for callback in self._params["callbacks"]:
            callback(row)
        if self._params["verbose"]:
            print(_line(row, self._params["epochs"]), flush=True)

    def state(self) -> bytes:
        """A checkpoint: the states of model and optimizer."""
        return state_bytes(self._model, self._optimizer)

    def _parts(self, batch: Mapping[str, Any]) -> tuple[Tensors, Tensors, torch.Tensor | None]:
        plan, device = self._plan, self._device
        features = [torch.as_tensor(batch[name], device=device) for name in plan.features]
        labels = [torch.as_tensor(batch[name], device=device) for name in plan.labels]
        weights = None if plan.weight is None else torch.as_tensor(batch[plan.weight]).to(device)
        return inputs_of(features, self._params["input_shapes"]), labels, weights

    def _transformed(self, outputs: Any, labels: Tensors) -> tuple[Tensors, Tensors]:
        """The outputs as a list, and the labels in the outputs' shapes."""
        found = outputs_of(outputs)
        if len(found) != len(labels):
            raise ValueError(f"the model gives {len(found)} outputs for {len(labels)} labels")
        if not self.sizes:
            self.sizes = [output[:1].numel() for output in found]
        return found, matched(found, labels, self._params["label_shapes"])

    def _step(self, inputs: Tensors, labels: Tensors, weights: torch.Tensor | None) -> Outcome:
        outputs, labels = self._transformed(self._model(*inputs), labels)
        loss = self._loss(outputs, labels, weights)
        loss.backward()
        self._passes += 1
        if self._passes % self._params["backward_passes_per_step"] == 0:
            self._optimizer.step()
            self._optimizer.zero_grad()
        return outputs, labels, loss

    def _own_step(self, inputs: Tensors, labels: Tensors, weights: Any) -> Outcome:
        step = self._params["train_minibatch_fn"]
        functions = (self._transformed, self._loss)
        found, loss = step(self._model, self._optimizer, *functions, inputs, labels, weights)
        outputs, labels = self._transformed(found, labels)
        return outputs, labels, loss

    def _add(self, means: _Means, outputs: Tensors, labels: Tensors, loss: torch.Tensor) -> None:
        rows = len(outputs[0])
        means.add("loss", loss.detach(), rows)
        for name, place, metric in self._metrics:
            means.add(name, metric(outputs[place].detach(), labels[place]), rows)


class _Means:
    """Means over rows, summed on the device, so that no step waits for a number."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums: dict[str, torch.Tensor] = {}
        self._rows: dict[str, int] = {}

    def add(self, name: str, value: Any, rows: int) -> None:
        """Add the mean of ``rows`` rows."""
        if name not in self._sums:
            self._sums[name] = torch.zeros((), dtype=torch.float64, device=self._device)
            self._rows[name] = 0
        mean = torch.as_tensor(value, device=self._device)
        self._sums[name].add_(mean.reshape(()) if mean.ndim else mean, alpha=rows)
        self._rows[name] += rows

    def over_ranks(self, what: str) -> dict[str, float]:
        """The means over the rows of all ranks."""
        names = list(self._sums)
        mine = torch.tensor(
            [[float(self._sums[name]), float(self._rows[name])] for name in names],
            dtype=torch.float64,
        )
        total = hvd.allreduce(mine, op=hvd.Sum, name=f"estimator.{what}")
        return {name: (total[i, 0] / total[i, 1]).item() for i, name in enumerate(names)}


def pick_device(use_gpu: bool) -> torch.device:
    """The device of this process.

    Raises:
        RuntimeError: some ranks have a GPU, and others none.
    """
    is_gpu = use_gpu and torch.cuda.is_available()
    kinds = hvd.allgather_object(is_gpu, name="estimator.device")
    if len(set(kinds)) != 1:
        raise RuntimeError(
            "ranks have devices of different types: "
            + ", ".join(f"{rank}: {'GPU' if kind else 'CPU'}" for rank, kind in enumerate(kinds))
        )
    if not is_gpu:
        return torch.device("cpu")
    torch.cuda.set_device(gpu_number())
    return torch.device("cuda", gpu_number())


def state_bytes(model: torch.nn.Module, optimizer: Any) -> bytes:
    """The states of model and optimizer (or None), with all tensors on the CPU."""
    file = io.BytesIO()
    states = {"model": model.state_dict(), "optimizer": optimizer and optimizer.state_dict()}
    torch.save(_on_cpu(states), file)
    return file.getvalue()


def load_state(data: bytes, model: torch.nn.Module, optimizer: Any) -> None:
    """Give model and optimizer (or None) the states of ``state_bytes``."""
    state = torch.load(io.BytesIO(data), weights_only=True)
    model.load_state_dict(state["model"])
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])


def adopt(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    """Let an optimizer of a copy of the model step on the model."""
    parameters = list(model.parameters())
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if {id(parameter) for parameter in own} <= {id(parameter) for parameter in parameters}:
        return
    if [parameter.shape for parameter in own] != [parameter.shape for parameter in parameters]:
        raise ValueError("the optimizer was made for parameters that the model does not have")
    following = dict(zip(map(id, own), parameters, strict=True))
    for group in optimizer.param_groups:
        group["params"] = [following[id(parameter)] for parameter in group["params"]]
    states: dict[torch.Tensor, Any] = {
        following[id(parameter)]: state for parameter, state in optimizer.state.items()
    }
    optimizer.state.clear()
    optimizer.state.update(states)


def float_dtype(model: torch.nn.Module) -> str:
    """The name of the dtype of the model's parameters."""
    kinds = [p.dtype for p in model.parameters() if p.dtype in (torch.float32, torch.float64)]
    return "float64" if kinds and kinds[0] == torch.float64 else "float32"


def named_metrics(metrics: Any, labels: Sequence[str]) -> list[tuple[str, int, Any]]:
    """``(name, output, function)`` of all metrics; a list of lists has a list per output."""
    is_nested = bool(metrics) and isinstance(metrics[0], list | tuple)
    by_output = metrics if is_nested else [metrics] * len(labels)
    named = []
    for place, (label, functions) in enumerate(zip(labels, by_output, strict=True)):
        for function in functions:
            name = getattr(function, "__name__", type(function).__name__)
            named.append((name if len(labels) == 1 else f"{label}_{name}", place, function))
    return named


def _on_cpu(value: Any) -> Any:
    """``value`` with all tensors on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    return [_on_cpu(item) for item in value] if isinstance(value, list) else value


def _line(row: Mapping[str, Any], epochs: int) -> str:
    parts = [f"epoch {row['epoch'] + 1}/{epochs}"]
    for what in ("train", "validation"):
        parts += [f"{what} {name} {value:.4f}" for name, value in row.get(what, {}).items()]
    return "  ".join(parts)
