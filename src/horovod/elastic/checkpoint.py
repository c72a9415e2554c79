"""A state's values in one file: replaced whole or not at all, and read without running its code.

The file is a zip archive without compression. ``values.pickle`` holds the tree of plain objects.
Arrays and tensors in it are numbers of *blobs*: raw bytes in members of their own (small ones are
beside the number). Unless the caller trusts the file, its pickle can make plain objects only. The
checksums are those of the archive.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import pickle
import socket
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from horovod.core.base.own_files import follow, open_own, open_regular, replacing

_ABOUT, _VALUES = "horovod-state.json", "values.pickle"
_FORMAT = 1
_MOST_INLINE_BYTES = 4096
_ENDING = ".partial"
_HEADER_BYTES = 30  # of a member of a zip archive, before its name

# Classes that run no code of their own and that a pickle cannot change.
_PLAIN = {
    "builtins": "bool bytearray bytes complex dict float frozenset int list range set slice str",
    "collections": "OrderedDict defaultdict deque",
    "datetime": "date datetime time timedelta timezone",
}
_PLAIN_CLASSES = {(module, name) for module, names in _PLAIN.items() for name in names.split()}

Header = tuple[Any, ...]


class Leaf(Protocol):
    """Converts values of one kind to bytes with a header of plain objects, and back."""

    name: str  # in the file

    def encode(self, value: Any) -> tuple[Header, bytes | memoryview] | None:
        """None if the value is of another kind."""

    def decode(self, header: Header, data: bytearray) -> Any:
        """The value, which may keep ``data``."""


class _Arrays:
    """NumPy's arrays and scalars of any dtype but objects, also of registered dtypes."""

    name = "array"

    def encode(self, value: Any) -> tuple[Header, bytes | memoryview] | None:
        is_scalar = isinstance(value, np.generic)
        if not is_scalar and type(value) is not np.ndarray:
            return None
        array = np.asarray(value, order="C")
        if array.dtype.hasobject:
            return None
        is_registered = array.dtype.isbuiltin == 2
        dtype = array.dtype.name if is_registered else np.lib.format.dtype_to_descr(array.dtype)
        data = array.reshape(-1).view(np.uint8).data if array.size else b""
        return (dtype, array.shape, is_scalar), data

    def decode(self, header: Header, data: bytearray) -> Any:
        descr, shape, is_scalar = header
        dtype = np.dtype(descr) if isinstance(descr, str) else np.lib.format.descr_to_dtype(descr)
        array = np.frombuffer(data, dtype).reshape(shape)
        return array[()] if is_scalar else array


def write_checkpoint(
    path: str | os.PathLike[str], kind: str, values: Any, leaves: Sequence[Leaf] = ()
) -> None:
    """Replace the file at ``path``, or make it; after an error it is what it was before.

    Args:
        kind: what the values are of; a reader has to ask for the same.
        values: plain objects, NumPy's arrays and what ``leaves`` encode; others are pickled.
        leaves: asked in this order.

    Raises:
        OSError: it cannot be written; names path and reason.
        TypeError: something in ``values`` cannot be pickled.
    """
    target = Path(path).absolute()
    try:
        target = follow(target)  # what a link leads to is replaced, not the link
        with _replacing(target) as file, zipfile.ZipFile(file, "w") as archive:
            archive.writestr(_ABOUT, json.dumps({"format": _FORMAT, "kind": kind}))
            tree = io.BytesIO()
            _Writer(tree, archive, leaves).dump(values)
            archive.writestr(_VALUES, tree.getbuffer())
    except OSError as error:
        reason = error.strerror or str(error)
        text = f"the state was not written: {reason}"
        raise OSError(error.errno or errno.EIO, text, str(target)) from error
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"the state was not written to {target}: {error}") from error


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    """A file that replaces ``target`` when the block succeeds, and is removed otherwise."""
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "no regular file")
    start = f".{target.name}.{socket.gethostname()}-"
    _remove_abandoned(target.parent, start)
    draft_name = f"{start}{os.urandom(8).hex()}{_ENDING}"
    with replacing(target, 0o666, keeps_mode=True, draft_name=draft_name) as file:
        with contextlib.suppress(OSError):  # some file systems cannot
            fcntl.flock(file, fcntl.LOCK_SH)
        yield file
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(target.parent)


def _remove_abandoned(folder: Path, start: str) -> None:
    """Remove files that killed writers of this machine left; each is as large as a checkpoint.

    A file is removed if it begins like a file of a state and no writer has it locked.
    """
    for name in os.listdir(folder):
        if not name.startswith(start) or not name.endswith(_ENDING):
            continue
        with contextlib.suppress(OSError), open(open_own(folder / name), "rb") as file:
            if file.read(_HEADER_BYTES + len(_ABOUT))[_HEADER_BYTES:] != _ABOUT.encode():
                continue
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(folder / name)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot
            raise
    finally:
        os.close(descriptor)


def read_checkpoint(
    path: str | os.PathLike[str], kind: str, leaves: Sequence[Leaf] = (), allow_pickle: bool = False
) -> Any:
    """The values in a file of ``write_checkpoint``, given the same ``kind`` and ``leaves``.

    Args:
        allow_pickle: make objects of any class, which runs whatever the file says.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: it is no such file, damaged, of another kind, or has objects of other classes.
    """
    target = Path(path).absolute()
    try:
        with (
            open(open_regular(target, os.O_RDONLY), "rb") as file,
            zipfile.ZipFile(file) as archive,
        ):
            _check(archive, kind, os.fstat(file.fileno()).st_size)
            tree = io.BytesIO(archive.read(_VALUES))
            return _Reader(tree, archive, leaves, allow_pickle).load()
    except OSError as error:
        text = f"the state was not read: {error.strerror or error}"
        raise OSError(error.errno or errno.EIO, text, str(target)) from error
    except zipfile.BadZipFile as error:
        raise ValueError(f"{target}: no file of a state, or a damaged one: {error}") from error
    except Exception as error:  # unpickling can raise anything
        raise ValueError(f"{target}: {error}") from error


def _check(archive: zipfile.ZipFile, kind: str, size_bytes: int) -> None:
    if _ABOUT not in archive.namelist():
        raise ValueError("no file of a state")
    for member in archive.infolist():  # a member could claim any amount of memory
        if member.compress_type != zipfile.ZIP_STORED or member.file_size > size_bytes:
            raise ValueError(
                f"no file of a state, or a damaged one: {member.filename!r} has "
                f"{member.file_size} bytes, the file {size_bytes}; expected nothing compressed"
            )
    about = json.loads(archive.read(_ABOUT))
    if about["format"] != _FORMAT:
        raise ValueError(f"written in format {about['format']}; this version reads {_FORMAT}")
    if about["kind"] != kind:
        raise ValueError(f"written by a {about['kind']}, and this is a {kind}")


class _Writer(pickle.Pickler):
    """Writes leaves into the archive, and their numbers into the pickle."""

    def __init__(self, file: BinaryIO, archive: zipfile.ZipFile, leaves: Sequence[Leaf]) -> None:
        super().__init__(file, protocol=5)
        self._archive = archive
        self._leaves = (_Arrays(), *leaves)
        self._count = 0

    def persistent_id(self, value: Any) -> Any:
        for leaf in self._leaves:
            found = leaf.encode(value)
            if found is not None:
                header, data = found
                return leaf.name, header, self._put(data)
        return None

    def _put(self, data: bytes | memoryview) -> bytes | str:
        if len(data) <= _MOST_INLINE_BYTES:
            return bytes(data)
        name = f"blobs/{self._count}"
        self._count += 1
        with self._archive.open(name, "w", force_zip64=True) as member:
            member.write(data)
        return name


class _Reader(pickle.Unpickler):
    """The inverse of ``_Writer``. Unless the file is trusted it finds plain classes only."""

    def __init__(
        self, file: BinaryIO, archive: zipfile.ZipFile, leaves: Sequence[Leaf], allow_pickle: bool
    ) -> None:
        super().__init__(file)
        self._archive = archive
        self._leaves = {leaf.name: leaf for leaf in (_Arrays(), *leaves)}
        self._allow_pickle = allow_pickle

    def persistent_load(self, reference: Any) -> Any:
        kind, header, place = reference
        data = self._blob(place) if isinstance(place, str) else bytearray(place)
        return self._leaves[kind].decode(header, data)

    def _blob(self, name: str) -> bytearray:
        data = bytearray(self._archive.getinfo(name).file_size)
        rest = memoryview(data)
        with self._archive.open(name) as member:
            # The last call, at the end, checks the checksum.
            while count := member.readinto(rest):  # type: ignore[attr-defined]
                rest = rest[count:]
        return data

    def find_class(self, module: str, name: str) -> Any:
        if self._allow_pickle or (module, name) in _PLAIN_CLASSES:
            return super().find_class(module, name)
        raise ValueError(
            f"has an object of {module}.{name}, and to make it may run anything; if you trust the "
            "file, load(path, allow_pickle=True)"
        )
