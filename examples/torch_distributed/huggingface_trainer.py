"""Trains on handwritten digits with the Trainer of Hugging Face Transformers, on Horovod's engine.

torchrun --nproc-per-node 2 examples/torch_distributed/huggingface_trainer.py
horovodrun -np 2 python examples/torch_distributed/huggingface_trainer.py
"""

import sys
import tempfile

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments

# On CPUs the Trainer asks for Gloo, unless a process group is there.
dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "horovod")
torch.set_num_threads(1)


class Digits(torch.nn.Module):
    """A classifier in the form that the Trainer expects: it returns its loss."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        )

    def forward(self, pixels, labels):
        logits = self.layers(pixels)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def accuracy(prediction):
    found = np.argmax(prediction.predictions, axis=1)
    return {"accuracy": float((found == prediction.label_ids).mean())}


images, labels = load_digits(return_X_y=True)
samples = [
    {"pixels": torch.tensor(image / 16, dtype=torch.float32), "labels": int(label)}
    for image, label in zip(images, labels, strict=True)
]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        seed=1,
        num_train_epochs=3,
        per_device_train_batch_size=32,
        learning_rate=0.005,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    torch.manual_seed(1)
    trainer = Trainer(
        Digits(), arguments, train_dataset=samples, eval_dataset=samples, compute_metrics=accuracy
    )
    trainer.train()
    found = trainer.evaluate()

if dist.get_rank() == 0:
    print(f"loss {found['eval_loss']:.5f}, accuracy {found['eval_accuracy']:.3f}")

dist.destroy_process_group()
