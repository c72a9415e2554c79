"""What a driver leaves for the next one, and whom it is not for."""

from __future__ import annotations

import errno
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from horovod.launch.elastic.memory import JobRefusedError, Memory, new_record, open_store
from horovod.launch.elastic.policy.actions import Say
from horovod.launch.model.job_plan import ElasticPlan, JobPlan, Limits
from horovod.launch.remote.job_folder import DRIVER, job_folder_path
from horovod.rendezvous.identity.elastic_messages import Ready

LIMITS = Limits(1, 1, None, None, 600.0, None)
ELASTIC = ElasticPlan(LIMITS, "./hosts.sh", job_id="fred")
PLAN = JobPlan(("python", "train.py"), elastic=ELASTIC)


class Desk:
    def __init__(self, folder: Path) -> None:
        self.environ = {"XDG_STATE_HOME": str(folder)}
        self.secret = b""
        self.state = job_folder_path("fred", DRIVER, self.environ) / "state"

    def memory(self, plan: JobPlan = PLAN) -> Memory:
        return Memory(plan, self.environ)

    def change(self, **heading: str) -> None:
        line, _, rest = self.state.read_bytes().partition(b"\n")
        changed = {**json.loads(line), **heading}
        self.state.write_bytes(json.dumps(changed).encode() + b"\n" + rest)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    record = new_record(PLAN)
    record.policy.hosts_found(1.0, {"a": 1})
    record.policy.worker_ready(2.0, 0, Ready())
    record.pending = [Say("x")]
    with closing(desk.memory()) as memory:
        assert memory.recalled is None
        memory.keep(record)
        desk.secret = record.secret
    return desk


def test_it_is_recalled_and_goes_on(desk: Desk) -> None:
    with closing(desk.memory()) as memory:
        record = memory.recalled
        assert record is not None
        assert record.secret == desk.secret
        assert record.pending == [Say("x")]
        assert record.policy.workers == {0: "a"}
        assert "was ended by SIGKILL" in str(record.policy.worker_exited(3.0, 0, -9))
    assert desk.state.stat().st_mode & 0o777 == 0o600


def test_two_drivers_do_not_live_at_a_time(desk: Desk) -> None:
    with closing(desk.memory()), pytest.raises(JobRefusedError, match=r"is run by process \d+ on"):
        desk.memory()


def test_nothing_is_left_of_a_job_that_is_over(desk: Desk) -> None:
    desk.memory().remove()
    assert not desk.state.parent.parent.exists()
    with closing(desk.memory()) as memory:
        assert memory.recalled is None


def test_another_command_line_is_another_job(desk: Desk) -> None:
    other = replace(PLAN, command=("python", "other.py"))
    with pytest.raises(JobRefusedError, match=r"job fred did not end; .* as: python train.py"):
        desk.memory(other)
    desk.memory().close()  # no driver holds it


def test_another_version_cannot_go_on(desk: Desk) -> None:
    desk.change(version="horovod 0.1 with Python 3.9.1")
    with pytest.raises(JobRefusedError, match=r"begun by horovod 0.1 with Python 3.9.1 as: "):
        desk.memory()


def test_times_mean_nothing_after_a_reboot(desk: Desk) -> None:
    desk.change(boot="another")
    with closing(desk.memory()) as memory:
        assert memory.recalled is None
        assert memory.void == "this machine was restarted meanwhile"


def test_nothing_is_read_that_others_can_write(desk: Desk) -> None:
    desk.state.chmod(0o620)
    with pytest.raises(JobRefusedError, match="is open to others"):
        desk.memory()


def test_a_damaged_file(desk: Desk) -> None:
    desk.state.write_bytes(desk.state.read_bytes()[:-20])
    with pytest.raises(JobRefusedError, match="state cannot be read"):
        desk.memory()


def test_a_job_without_an_id_leaves_nothing(tmp_path: Path) -> None:
    plan = replace(PLAN, elastic=replace(ELASTIC, job_id=""))
    with closing(Memory(plan, {"XDG_STATE_HOME": str(tmp_path)})) as memory:
        memory.keep(new_record(PLAN))
        memory.remove()
    assert list(tmp_path.iterdir()) == []


def test_only_a_store_that_workers_look_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("horovod.launch.elastic.memory.StoreServer", refuse)
    record = new_record(PLAN)
    with pytest.raises(OSError, match="Too many open files"):
        open_store(record, report=print, on_set=print)
    record.stores = [("127.0.0.1", 5)]
    with pytest.raises(JobRefusedError, match=r"look for horovodrun at 127\.0\.0\.1:5"):
        open_store(record, report=print, on_set=print)
