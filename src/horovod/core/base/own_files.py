"""Files and folders of this user, in a place that the user has named and others may write to.

An *own* file or folder belongs to this user and is no link. Only own files are read, emptied,
replaced or removed. Nothing here blocks on another kind of file. ``docs/security.md`` lists the
places, and how files of Horovod are recognised there. Errors name the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_UNBLOCKED = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OTHERS_CAN_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40  # as in Linux


def home_folder() -> Path:
    """This user's home folder.

    Raises:
        FileNotFoundError: none is known: HOME is not set, and the system does not list the user, as
            in a container that runs under any number.
    """
    try:
        return Path.home()
    except RuntimeError:
        text = f"user {os.geteuid()} has no home folder, and HOME is not set"
        raise FileNotFoundError(text) from None


def is_own_file(found: os.stat_result) -> bool:
    """Whether it is a regular file of this user."""
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def open_own(
    path: str | os.PathLike[str],
    flags: int = os.O_RDONLY,
    mode: int = 0o600,
    *,
    folder: int | None = None,
) -> int:
    """A descriptor of an own file; ``path`` is one in ``folder``, a descriptor, if that is given.

    Raises:
        PermissionError: it is no regular file, or belongs to another user.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | _UNBLOCKED, mode, dir_fd=folder)
    found = os.fstat(descriptor)
    if is_own_file(found):
        return descriptor
    os.close(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise PermissionError(f"{os.fspath(path)}: expected a regular file")
    raise PermissionError(
        f"{os.fspath(path)} belongs to user {found.st_uid}, expected {os.geteuid()}"
    )


def open_regular(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """A descriptor of a file that the user has named; it may be another user's, or behind a link.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, flags | _UNBLOCKED, mode)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(f"{os.fspath(path)}: expected a regular file")


def read_own(path: str | os.PathLike[str], most_bytes: int, *, folder: int | None = None) -> bytes:
    """All of an own file.

    Raises:
        OSError: as ``open_own``, or it is larger than ``most_bytes``.
    """
    with open(open_own(path, folder=folder), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most_bytes + 1) if size <= most_bytes else b""
    if size > most_bytes or len(data) > most_bytes:
        raise OSError(f"{os.fspath(path)}: {size} bytes, expected at most {most_bytes}")
    return data


def follow(path: str | os.PathLike[str]) -> Path:
    """The absolute path without links that ``path`` leads to; it need not exist.

    A link must belong to this user or to the owner of its folder, as in the kernel with
    ``fs.protected_symlinks``. In a folder that all may write to, another user's link could lead
    anywhere.

    Raises:
        PermissionError: a link belongs to another user.
        OSError: links lead in a circle.
    """
    found, links = Path("/"), 0
    left = [*reversed(Path(path).absolute().parts[1:])]
    while left:
        name = left.pop()
        if name == "..":
            found = found.parent
            continue
        target = _target_of(found, name)
        if target is None:
            found = found / name
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
        if target.is_absolute():
            found = Path("/")
        left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return found


def _target_of(folder: Path, name: str) -> Path | None:
    """The target of a link in a folder; None if it is no link. PermissionError as ``follow``."""
    path = folder / name
    try:
        link, owner = path.lstat(), folder.lstat().st_uid
    except OSError:  # opening it will fail, too
        return None
    if not stat.S_ISLNK(link.st_mode):
        return None
    if link.st_uid not in (os.geteuid(), owner):
        raise PermissionError(
            f"{path}: the link belongs to user {link.st_uid}, expected {os.geteuid()} or the "
            f"owner of its folder, {owner}"
        )
    return path.readlink()


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str],
    mode: int = 0o600,
    *,
    folder: int | None = None,
    keeps_mode: bool = False,
    draft_name: str = "",
) -> Iterator[BinaryIO]:
    """A new file that replaces ``path`` when the block ends well; otherwise it is removed.

    Other processes never see a part of it. Only a regular file is replaced. ``mode`` is for a new
    file, or also for one that replaces another unless it ``keeps_mode``. ``draft_name`` is that of
    the new file until then, by default one that tells nothing.

    Raises:
        OSError: it cannot be written, or something else is there.
    """
    head, name = os.path.split(os.fspath(path))
    there = None
    with contextlib.suppress(FileNotFoundError):
        there = os.lstat(path, dir_fd=folder)
    if there is not None and not stat.S_ISREG(there.st_mode):
        raise OSError(f"{os.fspath(path)}: expected a regular file to replace, or none")
    draft = os.path.join(head, draft_name or f".{name[:200]}.{os.urandom(8).hex()}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(draft, flags, mode, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            if keeps_mode and there is not None and is_own_file(there):
                os.fchmod(descriptor, there.st_mode & 0o777)
            yield file
        os.replace(draft, path, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise


class OwnFolder:
    """An own folder that no other user can write to, held open until ``close``.

    All operations use names inside of it, so no link leads out.

    Raises:
        PermissionError: it is not the user's alone; the text says why.
        OSError: it cannot be opened, or is a link.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        found = os.fstat(self.descriptor)
        problem = ""
        if found.st_uid != os.geteuid():
            problem = f"belongs to user {found.st_uid}, expected {os.geteuid()}"
        elif found.st_mode & _OTHERS_CAN_WRITE:
            mode = stat.S_IMODE(found.st_mode)
            problem = f"can be written by others (mode {mode:o}); try chmod go-w {path}"
        if problem:
            self.close()
            raise PermissionError(f"{path} {problem}")

    def __enter__(self) -> OwnFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the descriptor."""
        os.close(self.descriptor)

    def names(self) -> list[str]:
        """All names in it, in order."""
        return sorted(os.listdir(self.descriptor))

    def own_file(self, name: str) -> os.stat_result | None:
        """The status of an own file; None for anything else."""
        try:
            found = os.lstat(name, dir_fd=self.descriptor)
        except OSError:
            return None
        return found if is_own_file(found) else None

    def read(self, name: str, most_bytes: int) -> bytes:
        """All of an own file. Raises OSError, as ``read_own``."""
        return read_own(name, most_bytes, folder=self.descriptor)

    def replace(self, name: str, data: bytes) -> None:
        """Write a file for this user alone; it may replace a regular file. Raises OSError."""
        with replacing(name, folder=self.descriptor) as file:
            file.write(data)

    def remove(self, name: str) -> None:
        """Remove an own file; anything else stays."""
        if self.own_file(name) is not None:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self.descriptor)
