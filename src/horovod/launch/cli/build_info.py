"""The table of what works here, for ``horovodrun --check-build``."""

from __future__ import annotations

from horovod.core import gpus
from horovod.core.base import mpi_library
from horovod.core.compatibility import is_installed
from horovod.rendezvous.base.protection import find_cipher

_Rows = tuple[tuple[str, bool], ...]


def build_table(version: str) -> str:
    """The table; imports no framework."""
    frameworks = (
        ("TensorFlow", is_installed("tensorflow")),
        ("PyTorch", is_installed("torch")),
        ("MXNet", is_installed("mxnet")),
        ("JAX", is_installed("jax")),
        ("Keras", is_installed("keras")),
        ("NumPy", True),
    )
    has_mpi = mpi_library.is_built()
    # Gloo stands for the native engine, which is always there.
    controllers = (("MPI", has_mpi), ("Gloo", True))
    operations = (
        *(("NCCL", gpus.nccl_version() != 0), ("DDL", False), ("CCL", False)),
        ("MPI", has_mpi),
        ("Gloo", is_installed("torch")),
        ("Native", True),
    )
    blocks = (
        _block("Available Frameworks:", frameworks),
        _block("Available Controllers:", controllers),
        _block("Available Tensor Operations:", operations),
        _block("Available Connections Between Hosts:", (_link_row(),)),
    )
    return f"Horovod v{version}:\n\n" + "\n".join(blocks)


def problems() -> list[str]:
    """The reasons why optional parts do not work here."""
    missing = [("NCCL", gpus.nccl_problem()), ("MPI", mpi_library.why_not_built())]
    if not is_installed("torch"):
        missing.append(("Gloo", "it comes with PyTorch; pip install torch"))
    if isinstance(problem := find_cipher(), str):
        missing.append(("OpenSSL", problem))
    return [f"{name}: {reason}" for name, reason in missing if reason is not None]


def _link_row() -> tuple[str, bool]:
    """The library that encrypts connections, and its path."""
    cipher = find_cipher()
    if isinstance(cipher, str):
        return "OpenSSL", False
    return f"{cipher.version} ({cipher.path})", True


def _block(title: str, rows: _Rows) -> str:
    marks = "".join(f"    [{'X' if is_there else ' '}] {name}\n" for name, is_there in rows)
    return f"{title}\n{marks}"
