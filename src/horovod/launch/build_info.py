"""What this installation can do, in the table that ``horovodrun --check-build`` prints."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["build_table"]

_Rows = tuple[tuple[str, bool], ...]


def build_table(version: str) -> str:
    """The table for what is installed here; imports no framework to find out."""
    frameworks = (
        ("TensorFlow", _is_installed("tensorflow")),
        ("PyTorch", _is_installed("torch")),
        ("MXNet", False),
    )
    controllers = (("MPI", False), ("Gloo", True))
    operations = (("NCCL", False), ("DDL", False), ("CCL", False), ("MPI", False), ("Gloo", True))
    blocks = (
        _block("Available Frameworks:", frameworks),
        _block("Available Controllers:", controllers),
        _block("Available Tensor Operations:", operations),
    )
    return f"Horovod v{version}:\n\n" + "\n".join(blocks)


def _block(title: str, rows: _Rows) -> str:
    marks = "".join(f"    [{'X' if is_there else ' '}] {name}\n" for name, is_there in rows)
    return f"{title}\n{marks}"


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
