"""Data planes: libraries that carry tensors in place of the C++ engine.

``protocol`` is the class that a data plane implements; ``mpi`` and ``gloo`` are two of them.
``data_plane`` finds the chosen one and connects its process sets with the C++ engine.
``conformance`` tests a data plane.
"""

from horovod.backends.protocol import Backend, Group, GroupStore, Request

__all__ = ["Backend", "Group", "GroupStore", "Request"]
