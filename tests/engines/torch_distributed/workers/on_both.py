"""Runs a script on the backend ``horovod``, then on Gloo: one after the other in one process."""

from __future__ import annotations

import os
import runpy
import sys

import torch.distributed as dist


def forget() -> None:
    """What a script leaves behind: Lightning its process group, Accelerate its state."""
    if dist.is_initialized():
        dist.destroy_process_group()
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState, PartialState

        AcceleratorState._reset_state()
        GradientState._reset_state()
        PartialState._reset_state()


def run(backend: str) -> dict[str, object]:
    sys.argv = [script, backend]
    if os.environ["RANK"] == "0":  # which prints the results: other ranks may be ahead of it
        print(f"on {backend}", flush=True)
    return runpy.run_path(script, run_name="__main__")


def keep_store() -> dist.TCPStore | None:
    """A store for both groups, as torchrun has one.

    Else rank 0 would end its store with the first group, when rank 1 may already use it for the
    second one.
    """
    if "TORCHELASTIC_USE_AGENT_STORE" in os.environ:
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    if os.environ["RANK"] != "0":
        return None
    return dist.TCPStore(address, port, is_master=True, wait_for_workers=False)


script = sys.argv[1]
store = keep_store()
run("horovod")
forget()
# Gloo's destructor may wait for a thread that waits for the GIL: the group is kept to the end.
kept = run("gloo")
sys.stdout.flush()
os._exit(0)
