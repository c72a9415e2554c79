"""Trains on handwritten digits with Lightning's DDPStrategy, on Horovod's engine.

torchrun --nproc-per-node 2 examples/torch_distributed/lightning_ddp.py
horovodrun -np 2 python examples/torch_distributed/lightning_ddp.py
"""

import os
import sys

import lightning
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        )

    def training_step(self, batch, _):
        loss = torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch, _):
        hits = (self.layers(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("accuracy", hits, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)


lightning.seed_everything(1, verbose=False)
images, labels = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
loaders = [DataLoader(dataset, batch_size=32, shuffle=shuffle) for shuffle in (True, False)]

strategy = DDPStrategy(process_group_backend=sys.argv[1] if len(sys.argv) > 1 else "horovod")
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy=strategy,
    plugins=LightningEnvironment(),  # the launcher's variables, also where MPI is installed
    max_epochs=3,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
)
trainer.fit(Digits(), *loaders)

if trainer.is_global_zero:
    found = trainer.callback_metrics
    print(f"loss {found['loss']:.5f}, accuracy {found['accuracy']:.3f}")
