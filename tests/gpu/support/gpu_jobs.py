"""Jobs with tensors on GPUs, and the reason why this machine cannot run them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from launching import run

from horovod.core import gpus

WORKERS = Path(__file__).parents[1] / "workers"


def missing(count: int) -> str:
    """The reason why ``count`` GPUs are not available; empty if they are."""
    if (problem := gpus.cuda_problem()) is not None:
        return f"no CUDA driver: {problem}"
    if torch.version.cuda is None:
        return "this PyTorch is built without CUDA"
    found = torch.cuda.device_count()
    return "" if found >= count else f"needs {count} GPUs, found {found}"


def run_worker(ranks: int, name: str, *words: str, **settings: str) -> tuple[int, str, str]:
    """A job of a program in ``workers``: its exit status, output and errors."""
    command = [sys.executable, str(WORKERS / f"{name}.py"), *words]
    return run("-np", str(ranks), *command, env={**os.environ, **settings})


def succeed(ranks: int, name: str, *words: str, **settings: str) -> str:
    """The same for a job that must succeed; returns its errors."""
    status, out, err = run_worker(ranks, name, *words, **settings)
    assert status == 0, out + err
    return err
