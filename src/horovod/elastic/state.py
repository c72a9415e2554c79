"""What elastic training saves, goes back to and makes equal on all ranks."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from horovod.core.world import confirm
from horovod.elastic.checkpoint import Leaf, read_checkpoint, write_checkpoint
from horovod.elastic.notification import HostUpdate, notification_manager
from horovod.errors import HostsUpdatedInterrupt

if TYPE_CHECKING:
    from horovod.elastic.part_server import PartServer
    from horovod.elastic.parts import StateParts


class State:
    """Base of all states; derive from it and give ``save``, ``restore`` and ``sync``.

    ``saved_values`` and ``take_values`` are for subclasses whose states go to files.

    Args:
        bcast_object: gives all ranks a copy of rank 0's object; collective.
        get_rank: the current rank of this process, for subclasses.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._get_rank = get_rank
        self._host_messages: queue.Queue[tuple[int, int]] = queue.Queue()
        self._last_updated_timestamp = 0
        self._reset_callbacks: list[Callable[[], None]] = []
        # How new the saved copy is, and where it was written. With underscores, since any keyword
        # of an ``ObjectState`` is an attribute.
        self._commits = 0  # since the last sync
        self._checkpoint = ""
        self._unread: tuple[str, bool] | None = None
        self._part_server: PartServer | None = None  # on rank 0, while it trains
        self._is_as_saved = False

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Keep a copy of the current values in host memory; no communication.

        With a path: write what was saved or committed last to that file, on rank 0; other ranks do
        nothing. The file is replaced when it is complete and on disk, or stays as it was.

        Raises:
            OSError: the file cannot be written; names path and reason.
            TypeError: a value cannot be pickled.
        """
        if path is None:
            raise NotImplementedError(f"{type(self).__name__} must define save()")
        if self._get_rank() == 0:
            write_checkpoint(path, self._kind, self.saved_values(), self._leaves)
            self._checkpoint = os.path.abspath(path)

    def load(self, path: str | os.PathLike[str], allow_pickle: bool = False) -> None:
        """Go back to what ``save(path)`` wrote, on rank 0, whose ``sync`` gives it to all others.

        For the start of a script, after ``init`` and before the training function. Call it on every
        rank that sees the file: another one reads it if it takes rank 0's place before the first
        ``sync``. No communication. Numbers, texts, containers, arrays and tensors are read without
        running anything.

        Args:
            allow_pickle: make objects of other classes, too, which lets the file run any code.

        Raises:
            OSError: the file is missing or cannot be read.
            ValueError: it is of another state, damaged, or has objects of other classes; then the
                state is what it was.
        """
        if self._get_rank() != 0:
            self._unread = (os.path.abspath(path), allow_pickle)
            return
        self._unread = None
        values = read_checkpoint(path, self._kind, self._leaves, allow_pickle)
        before = self.saved_values()
        try:
            self.take_values(values)
            self.restore()
        except Exception as error:
            self.take_values(before)
            self.restore()
            raise ValueError(
                f"{os.path.abspath(path)}: does not fit this state: {error}"
            ) from error

    # The kinds of values in a file, besides plain objects and arrays.
    _leaves: Sequence[Leaf] = ()

    @property
    def _kind(self) -> str:
        """The Horovod class that it derives from, which names the kind of its files."""
        classes = type(self).__mro__
        return next(c.__name__ for c in classes if c.__module__.partition(".")[0] == "horovod")

    def saved_values(self) -> dict[str, Any]:
        """The values saved last, by name, in the form for a file; a subclass adds its own."""
        raise NotImplementedError(f"{type(self).__name__} must define saved_values()")

    def take_values(self, values: dict[str, Any]) -> None:
        """The inverse of ``saved_values``: ``restore`` goes back to these from now on.

        Raises:
            ValueError: they do not fit.
        """
        raise NotImplementedError(f"{type(self).__name__} must define take_values()")

    def restore(self) -> None:
        """Go back to what was saved last; no communication."""
        raise NotImplementedError(f"{type(self).__name__} must define restore()")

    def sync(self) -> None:
        """Make every rank equal to rank 0; collective, blocks until it is done."""
        raise NotImplementedError(f"{type(self).__name__} must define sync()")

    def reset(self) -> None:
        """Adapt to a new world, before callbacks and ``sync``; nothing unless overridden."""

    def commit(self) -> None:
        """``save``, then ``check_host_updates``: every rank has to call it equally often.

        Waits for collectives that GPUs are still at, so that what is saved is whole.

        Raises:
            HorovodInternalError: one of those has failed.
            HostsUpdatedInterrupt: as ``check_host_updates``.
        """
        confirm()
        self.save()
        self._commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Leave the training function, on all ranks at once, if the set of hosts changed.

        Collective where hosts can come and go: then every rank has to call it equally often. In a
        job of fixed size it returns at once without communication.

        Raises:
            HostsUpdatedInterrupt: rank 0 knows of a change newer than the last one seen.
        """
        if not notification_manager.has_source and self._host_messages.empty():
            return
        timestamp, kinds = self._root_numbers(self._due_messages())
        # A newcomer has seen no update, so rank 0 decides whether there is a newer one.
        self._last_updated_timestamp = timestamp
        if kinds:
            # All ranks that stay have the same state, so there is nothing to send.
            raise HostsUpdatedInterrupt(skip_sync=kinds == HostUpdate.REMOVED)

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Call these, without arguments and in this order, after each reset.

        Rank and size are those of the new world then: scale a learning rate here.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """A new world has begun: forget updates about the old one, ``reset``, then callbacks."""
        self._take_messages()
        if self._unread is not None and self._get_rank() == 0:
            self.load(*self._unread)
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def synced(self) -> None:
        """The state is that of rank 0 now; called by the loop around the training function."""
        self._commits = 0
        self._unread = None

    def on_hosts_updated(self, timestamp: int, update_res: int) -> None:
        """Note a change for the next ``check_host_updates``; called from any thread.

        Args:
            timestamp: when it happened, in seconds since the epoch.
            update_res: its kind, a ``HostUpdate``.
        """
        self._host_messages.put((timestamp, update_res))

    def _note_saved(self) -> None:
        """What was saved is the state as it is, until ``sync``; called by the loop."""
        self._is_as_saved = not self._reset_callbacks  # these may change it

    def _parts(self) -> StateParts | None:
        """What a process can get before it joins; None: it gets everything when it joins."""
        return None

    def _due_messages(self) -> tuple[int, int]:
        """``_take_messages``; on rank 0 a process joins later that has all but the last changes."""
        newest, kinds = self._take_messages()
        server = self._part_server
        if kinds == HostUpdate.ADDED and server is not None and server.should_wait():
            self._host_messages.put((newest, kinds))
            return self._last_updated_timestamp, HostUpdate.NONE
        return newest, kinds

    def _root_numbers(self, numbers: tuple[int, int]) -> tuple[int, ...]:
        """Rank 0's numbers, on all ranks; collective. A binding has a faster way."""
        found: tuple[int, int] = self._bcast_object(numbers)
        return found

    def _take_messages(self) -> tuple[int, int]:
        """Empty the queue: newest timestamp, and union of kinds of those not seen before."""
        newest, kinds = self._last_updated_timestamp, 0
        while True:
            try:
                timestamp, kind = self._host_messages.get_nowait()
            except queue.Empty:
                return newest, kinds
            if timestamp > self._last_updated_timestamp:
                newest, kinds = max(newest, timestamp), kinds | int(kind)


class ObjectState(State):
    """Python objects as attributes: one for each keyword, the same ones on every rank.

    Attributes are saved by reference: assign new values (``state.batch += 1``), for what changes
    inside a list or dict changes in the saved copy, too. Other attributes are not tracked.

    Args:
        bcast_object: as for ``State``.
        get_rank: as for ``State``.
        kwargs: names and first values; anything that can be pickled.
    """

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = kwargs
        self._assign_saved()

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Remember the current values; with a path write those remembered to a file, on rank 0.

        See ``State.save``.
        """
        if path is None:
            self._keep()
        else:
            super().save(path)

    def restore(self) -> None:
        """Assign the remembered values again."""
        self._assign_saved()

    def sync(self) -> None:
        """Take over the values that rank 0 saved last; collective."""
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
            self._assign_saved()

    def saved_values(self) -> dict[str, Any]:
        """The values saved last, in the form for a file."""
        return {"objects": self._saved_state}

    def take_values(self, values: dict[str, Any]) -> None:
        """Have ``restore`` go back to these."""
        check_names(values["objects"], self._saved_state)
        self._saved_state = values["objects"]

    def _keep(self) -> None:
        """``save`` without a path."""
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def _assign_saved(self) -> None:
        # Not ``restore``, which a subclass extends to values of its own.
        for name, value in self._saved_state.items():
            setattr(self, name, value)


class VariablesState(ObjectState):
    """Variables and plain objects; a subclass reads, writes and broadcasts the variables.

    Set what these need before ``__init__``, which reads the variables.
    """

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank, **kwargs)
        self._saved_values: list[Any] = self._read()

    def restore(self) -> None:
        """Go back to the last saved values; no communication."""
        self._write(self._saved_values)
        super().restore()

    def sync(self) -> None:
        """Give all ranks the state of rank 0, and save; collective, blocks until done.

        After an error ``restore`` goes back to the values saved before.
        """
        self._broadcast()
        values = self._read()
        super().sync()
        self._saved_values = values

    def saved_values(self) -> dict[str, Any]:
        """The last saved values, in the form of a state file."""
        return {**super().saved_values(), "variables": list(self._saved_values)}

    def take_values(self, values: dict[str, Any]) -> None:
        """Make these the values that ``restore`` goes back to."""
        check_arrays(values["variables"], self._saved_values)
        super().take_values(values)
        self._saved_values = values["variables"]

    def _keep(self) -> None:
        self._saved_values = self._read()
        super()._keep()

    def _read(self) -> list[Any]:
        """Copies of the variables' values, as arrays of NumPy."""
        raise NotImplementedError

    def _write(self, values: list[Any]) -> None:
        """The reverse of ``_read``."""
        raise NotImplementedError

    def _broadcast(self) -> None:
        """Overwrite the variables with those of rank 0; collective."""
        raise NotImplementedError


def build_optimizer(optimizer: Any, model: Any) -> None:
    """Make the variables of an optimizer of Keras now: all ranks and all states have the same."""
    if hasattr(optimizer, "build"):
        if not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
            optimizer.build(model.trainable_variables)
    elif hasattr(optimizer, "_create_all_weights"):  # before Keras 2.11, and its legacy classes
        optimizer._create_all_weights(model.trainable_variables)


def variables_of(optimizer: Any) -> list[Any]:
    """All variables of an optimizer of Keras, of any version; none of None."""
    variables = () if optimizer is None else optimizer.variables
    return list(variables() if callable(variables) else variables)


def inner_optimizers(optimizer: Any) -> Iterator[Any]:
    """An optimizer of Keras, then those inside it: a loss scaling optimizer wraps another."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


def forget_passes(optimizer: Any) -> None:
    """Let an optimizer of Keras with ``backward_passes_per_step`` begin to add up anew.

    A rank that has joined has made no pass, and one whose collective failed was inside of one.
    """
    for each in inner_optimizers(optimizer):
        aggregation = getattr(each, "_hvd_aggregation", None)
        if aggregation is not None:
            aggregation.reset()


def check_no_shares(optimizer: object) -> None:
    """``ValueError`` for an optimizer of Keras of whose state each rank has a part only."""
    if hasattr(optimizer, "gather_state"):
        raise ValueError(
            "elastic states cannot keep an optimizer with sharded=True: the state of a rank that "
            "goes would be lost"
        )


def check_names(found: Iterable[str], expected: Iterable[str]) -> None:
    """Raise ``ValueError`` if a file has values of other names."""
    missing, unknown = set(expected) - set(found), set(found) - set(expected)
    if missing or unknown:
        raise ValueError(
            f"values of the file that this state lacks: {sorted(unknown)}; the reverse: "
            f"{sorted(missing)}"
        )


def check_arrays(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Raise ``ValueError`` if a file has other arrays: in number, or one of another shape."""
    if len(found) != len(expected):
        raise ValueError(f"the file has {len(found)} variables, this state {len(expected)}")
    for number, (theirs, ours) in enumerate(zip(found, expected, strict=True)):
        if theirs.shape != ours.shape:
            raise ValueError(
                f"variable {number} has shape {list(theirs.shape)} in the file, "
                f"{list(ours.shape)} in this state"
            )
