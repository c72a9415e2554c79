"""Distributed data-parallel training: import ``horovod.torch`` or ``horovod.numpy``."""

__all__ = ["__version__"]

__version__: str


def __getattr__(name: str) -> str:
    # Reading the metadata costs more than everything else at start-up, and few ask for it.
    if name == "__version__":
        from importlib.metadata import version

        return version("horovod")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
