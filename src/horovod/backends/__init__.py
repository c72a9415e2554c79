"""Data planes: which engine carries the tensors, and those that are not ours.

``protocol`` is what an engine written in Python implements, ``mpi`` and ``gloo`` are two, ``plane``
finds the one that was chosen and connects its process sets, ``carrier`` stands between it and the
C++ engine, ``conformance`` tests one.
"""

from horovod.backends.protocol import Backend, Group, GroupStore, Request

__all__ = ["Backend", "Group", "GroupStore", "Request"]
