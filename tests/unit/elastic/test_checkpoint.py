"""A state's file: what comes back, what is refused, and what an error leaves."""

from __future__ import annotations

import datetime
import errno
import os
import pickle
import resource
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from horovod.elastic import ObjectState


class Rank:
    """The rank of this process, which may change."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> int:
        return self.number


@pytest.fixture
def rank() -> Rank:
    return Rank()


@pytest.fixture
def make(rank):
    """Makes the state of a process of this rank."""
    return lambda **values: ObjectState(lambda obj: obj, rank, **values)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "state.hvd"


def written(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


VALUES = {
    "number": 3,
    "nothing": None,
    "history": [1.5, (2, "three"), {4: b"five"}, {6, 7}, frozenset([8]), 9j, float("inf")],
    "when": datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc),
    "ordered": OrderedDict(a=1, b=range(3)),
    "scalar": np.float32(0.5),
    "flag": np.bool_(True),
    "day": np.datetime64("2020-01-02"),
}


def test_plain_values_come_back(make, path):
    make(**VALUES).save(path)
    loaded = make(**dict.fromkeys(VALUES))
    loaded.load(path)
    for name, value in VALUES.items():
        found = getattr(loaded, name)
        assert found == value
        assert type(found) is type(value)
    loaded.number = 99
    loaded.restore()
    assert loaded.number == 3


@pytest.mark.parametrize("count", [0, 1, 7, 5000])
@pytest.mark.parametrize("dtype", ["f8", "f2", "?", "u1", ">i4", "c16", "U3", "M8[s]", "i4,f8"])
def test_arrays_come_back(make, path, dtype, count):
    array = np.arange(count).astype("i8").astype(dtype)
    make(array=array, square=np.array([[array[:1]] * 2]).T, scalar=np.array(5)).save(path)
    loaded = make(array=0, square=0, scalar=0)
    loaded.load(path)
    assert (loaded.array.dtype, loaded.array.shape) == (array.dtype, array.shape)
    assert loaded.array.tobytes() == array.tobytes()
    assert loaded.square.shape == (min(count, 1), 2, 1)
    assert loaded.scalar.shape == ()
    loaded.array[:1] = array[-1:]  # it may be written to


def test_the_last_saved_values_are_written(make, path):
    state = make(step=0)
    state.step = 1
    state.commit()
    state.step = 2
    state.save(str(path))
    assert state.step == 2
    state.load(path)
    assert state.step == 1


def test_other_ranks_write_and_read_nothing(make, rank, path):
    state = make(step=4)
    rank.number = 1
    state.save(path)
    assert not path.exists()
    state.load(path)
    assert state.step == 4


def test_who_takes_the_place_of_rank_zero_before_the_first_sync_reads(make, rank, path):
    make(step=4).save(path)
    state = make(step=0)
    rank.number = 1
    state.load(path)
    state.on_reset()
    assert state.step == 0
    rank.number = 0
    state.on_reset()
    assert state.step == 4
    state.step = 5
    state.on_reset()
    assert state.step == 5


def test_who_has_synced_does_not_read_again(make, rank, path):
    make(step=4).save(path)
    state = make(step=0)
    rank.number = 1
    state.load(path)
    state.sync()
    state.synced()
    rank.number = 0
    state.on_reset()
    assert state.step == 0


def test_commits_are_counted_from_sync_to_sync(make, path):
    state = make(step=0)
    state.commit()
    state.save()
    state.commit()
    assert (state._commits, state._checkpoint) == (2, "")
    state.save(path)
    state.sync()
    state.synced()
    assert (state._commits, state._checkpoint) == (0, str(path))


def test_names_that_states_use_are_free_for_values(make, path):
    state = make(commits=5, checkpoint=None, path="p", objects=1)
    state.commit()
    state.save(path)
    assert (state.commits, state.checkpoint, state._commits) == (5, None, 1)


class OldStyle(ObjectState):
    """As scripts have them that know nothing of files."""

    def save(self):
        self.saved_extra = self.extra
        super().save()

    def restore(self):
        self.extra = self.saved_extra
        super().restore()


class WithExtra(OldStyle):
    def save(self, path=None):
        return ObjectState.save(self, path) if path else super().save()

    def saved_values(self):
        return {**super().saved_values(), "extra": self.saved_extra}

    def take_values(self, values):
        super().take_values(values)
        self.saved_extra = values["extra"]


def test_subclasses_of_old_scripts_commit_as_ever(rank):
    state = OldStyle(lambda obj: obj, rank, step=1)
    state.extra, state.step = 7, 2
    state.commit()
    state.extra, state.step = 8, 3
    state.restore()
    assert (state.extra, state.step) == (7, 2)


def test_a_subclass_can_add_its_own(rank, path):
    state = WithExtra(lambda obj: obj, rank, step=1)
    state.extra = np.arange(3)
    state.commit()
    state.save(path)
    state.extra = None
    state.load(path)
    assert state.extra.tolist() == [0, 1, 2]


def test_a_missing_file_is_named(make, path):
    with pytest.raises(FileNotFoundError, match=r"state\.hvd"):
        make(step=0).load(path)


def spoil(path: Path, how: str) -> None:
    whole = path.read_bytes()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "half":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "changed":
        at = whole.index(np.arange(5000).tobytes()) + 77
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    elif how == "pickle":
        path.write_bytes(pickle.dumps({"step": 1}))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("other", b"")


@pytest.mark.parametrize("how", ["empty", "half", "changed", "pickle", "zip"])
def test_a_damaged_or_foreign_file_changes_nothing(make, path, how):
    make(array=np.arange(5000)).save(path)
    spoil(path, how)
    state = make(array=7)
    with pytest.raises(ValueError, match=r"state\.hvd: no file of a state"):
        state.load(path)
    state.restore()
    assert state.array == 7


def test_other_names_are_refused(make, path):
    make(step=1, epoch=2).save(path)
    state = make(step=0, batch=0)
    with pytest.raises(ValueError, match=r"that this state lacks: \['epoch'\].*\['batch'\]"):
        state.load(path)
    assert state.step == 0


class Config:
    def __init__(self, width: int) -> None:
        self.width = width


class Evil:
    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_nothing_is_run_unless_the_file_is_trusted(make, path, tmp_path):
    evil = Evil()
    evil.folder = str(tmp_path / "ran")
    make(value=evil).save(path)
    state = make(value=1)
    with pytest.raises(ValueError, match=r"has an object of \w+\.mkdir.*allow_pickle=True"):
        state.load(path)
    assert state.value == 1
    assert not (tmp_path / "ran").exists()
    state.load(path, allow_pickle=True)
    assert (tmp_path / "ran").exists()


def test_what_cannot_be_pickled_leaves_the_old_file(make, path):
    make(step=1).save(path)
    before = written(path.parent)
    with pytest.raises(TypeError, match=rf"not written to {path}: .*lambda"):
        make(step=lambda: 0).save(path)
    assert written(path.parent) == before


# What can go wrong at which call, and how often it goes well before.
FAULTS = [
    ("open", errno.EROFS, "Read-only file system"),
    ("open", errno.EACCES, "Permission denied"),
    ("fsync", errno.ENOSPC, "No space left on device"),
    ("fsync", errno.EIO, "Input/output error"),
    ("replace", errno.EDQUOT, "Disk quota exceeded"),
]


@pytest.mark.parametrize(("call", "number", "text"), FAULTS)
def test_a_failing_disk_leaves_the_old_file_and_nothing_else(
    make, path, monkeypatch, call, number, text
):
    make(step=1).save(path)
    before = written(path.parent)

    def fail(*args: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    state = make(step=2)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match=rf"not written: {text}: '{path}'") as caught:
            state.save(path)
    assert caught.value.errno == number
    assert state._checkpoint == ""
    assert written(path.parent) == before
    state.save(path)


def test_a_full_disk(make, path):
    """A limit of this process stands for it: the kernel refuses to write on in mid-file."""
    make(step=1).save(path)
    before = written(path.parent)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    state = make(step=np.zeros(1_000_000))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=rf"not written: File too large: '{path}'"):
            state.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert written(path.parent) == before


def test_a_missing_folder_and_a_folder_in_the_way(make, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*/a/b'"):
        make().save(tmp_path / "a" / "b")
    with pytest.raises(OSError, match="no regular file"):
        make().save(tmp_path)
    assert written(tmp_path) == {}


def test_a_link_stays_one(make, path):
    link = path.with_name("latest")
    link.symlink_to(path)
    make(step=1).save(link)
    assert link.is_symlink()
    make(step=0).load(path)


def test_what_a_killed_writer_left_goes_with_the_next_write(make, path):
    killed = (
        "import os, signal, sys\n"
        "from horovod.elastic import ObjectState\n"
        "os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        "ObjectState(lambda obj: obj, lambda: 0, step=1).save(sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", killed, str(path)], timeout=500)
    (left,) = written(path.parent)
    assert left.endswith(".partial")
    other = path.with_name(left.replace(left.rpartition("-")[2], f"{os.getppid()}.partial"))
    other.write_bytes(b"of a process that is alive")
    make(step=2).save(path)
    assert set(written(path.parent)) == {path.name, other.name}
