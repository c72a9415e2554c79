"""Two ranks train with the ``Trainer`` of a package, stop, go on from a checkpoint, and compare.

Arguments: ``lightning.pytorch`` or ``pytorch_lightning``, a folder, programs that run afterwards.
"""

import sys
from importlib import import_module
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pl = import_module(sys.argv[1])

import horovod.torch as hvd  # noqa: E402
from horovod.lightning import HorovodStrategy, LogMetricsCallback, MetricsLogger  # noqa: E402

ROWS = 40
BATCH = 5


class Line(pl.LightningModule):
    """Fits a line, and keeps what each step has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1)
        self.seen: list[float] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        (x,) = batch
        self.seen += x.flatten().tolist()
        loss = ((self.net(x) - 2 * x) ** 2).mean()
        self.log("own", loss, on_step=False, on_epoch=True)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log("val_rank", float(hvd.rank()), sync_dist=True)
        columns = torch.arange(6.0).view(2, 3).t()  # not contiguous
        expected = torch.stack([columns + rank for rank in range(hvd.size())])
        assert torch.equal(self.all_gather(columns + hvd.rank()), expected)
        reduced = self.trainer.strategy.reduce(columns + hvd.rank(), reduce_op="sum")
        assert torch.equal(reduced, expected.sum(0))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.1)


class Logs(pl.loggers.CSVLogger):
    """Keeps the names that were logged."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.names: set[str] = set()

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.names.update(metrics)


def trainer(epochs: int, folder: Path, devices: int | str) -> pl.Trainer:
    checkpoint = pl.callbacks.ModelCheckpoint(folder, monitor="loss", save_top_k=1, save_last=True)
    return pl.Trainer(
        strategy=HorovodStrategy(),
        accelerator="cpu",
        devices=devices,
        max_epochs=epochs,
        callbacks=[checkpoint, MetricsLogger(every=3), LogMetricsCallback(BATCH)],
        logger=Logs(folder),
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def train(trainer: pl.Trainer, start: str | None = None) -> Line:
    torch.manual_seed(hvd.rank())  # rank 0's weights are broadcast
    module = Line()
    data = TensorDataset(torch.arange(ROWS, dtype=torch.float32).reshape(-1, 1) / ROWS)
    loaders = (DataLoader(data, BATCH, shuffle=True), DataLoader(data, BATCH))
    trainer.fit(module, *loaders, ckpt_path=start)
    return module


def main() -> None:
    torch.set_num_threads(1)
    shown = []  # on the page of --report
    hvd.log_metrics = lambda numbers, step, samples=0: shown.append((numbers, step, samples))
    # Each rank has its own folder, so the test sees which of them has written.
    hvd.init()
    folder = Path(sys.argv[2], str(hvd.rank()))
    whole = trainer(3, folder / "whole", 2)
    module = train(whole)
    logged = whole.callback_metrics

    steps = ROWS // BATCH // hvd.size()
    assert whole.global_step == 3 * steps, whole.global_step
    assert whole.world_size == hvd.size()
    shares = hvd.allgather_object({round(x * ROWS) for x in module.seen[: ROWS // hvd.size()]})
    assert len(set.union(*shares)) == ROWS, shares
    equal(module)
    assert len(set(hvd.allgather_object(float(logged["loss"])))) == 1
    own = hvd.allgather_object(float(logged["own"]))
    assert len(set(own)) == hvd.size()
    assert abs(float(logged["loss"]) - sum(own) / len(own)) < 1e-6
    assert float(logged["val_rank"]) == (hvd.size() - 1) / 2

    files = hvd.allgather_object(sorted(path.name for path in folder.rglob("*.ckpt")))
    assert files[0], files
    assert "last.ckpt" in files[0], files
    assert not any(files[1:]), files
    assert ("horovod/allreduce_bytes" in whole.logger.names) == (hvd.rank() == 0)

    assert sum(samples for _, _, samples in shown) == 3 * ROWS // hvd.size()
    assert shown[0][0].keys() == {"loss"}, shown[0]  # the module logs at the end of an epoch
    assert shown[0][1] == 1
    assert [step for numbers, step, _ in shown if "val_rank" in numbers] == [4, 8, 12], shown

    # The second training begins where the first one has ended: same weights, same Adam.
    last = Path(sys.argv[2], "0", "whole", "last.ckpt")
    longer = trainer(4, folder / "longer", "auto")
    again = train(longer, str(last))
    assert longer.global_step == 4 * steps, longer.global_step
    assert len(again.seen) == ROWS // hvd.size(), again.seen  # one epoch
    equal(again)
    saved = torch.load(last, weights_only=True)["state_dict"]["net.weight"]
    assert not torch.equal(saved, again.net.weight.detach())
    for program in sys.argv[3:]:  # here, since starting two processes takes longer
        exec(compile(Path(program).read_text(), program, "exec"), {"__name__": "__main__"})
    print("fine", flush=True)


def equal(module: nn.Module) -> None:
    """All ranks have the same bits."""
    states = hvd.allgather_object([value.tolist() for value in module.state_dict().values()])
    assert all(state == states[0] for state in states), states


main()
