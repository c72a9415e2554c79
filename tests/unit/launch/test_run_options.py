"""The parameters of ``horovod.run``: what is accepted, and what is refused by which name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horovod
from horovod.launch.calls.call import Call
from horovod.launch.model.hosts import HostSlots
from horovod.launch.model.job_plan import ElasticPlan, JobPlan, Limits, OtherHosts
from horovod.launch.model.ssh import SshOptions
from horovod.launch.run import function

SCRIPT = {"host_discovery_script": "./hosts.sh"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Call, JobPlan]]:
    """Jobs are written down instead of run."""
    seen: list[tuple[Call, JobPlan]] = []
    monkeypatch.setattr(function, "run_call", lambda call, plan, environ: seen.append((call, plan)))
    return seen


def plan_of(asked: list[tuple[Call, JobPlan]], **given: Any) -> JobPlan:
    horovod.run(print, **given)
    return asked[-1][1]


def test_defaults(asked: list[tuple[Call, JobPlan]]) -> None:
    plan = plan_of(asked)
    assert [(slot.rank, slot.size, slot.hostname) for slot in plan.slots] == [(0, 1, "localhost")]
    assert plan.command[0] == sys.executable
    assert plan.extra_environment == {}
    assert (plan.output_directory, plan.is_verbose) == (None, False)
    assert asked[0][0] == Call(print, (), {}, tuple(sys.argv), tuple(sys.path))


def test_another_python_searches_its_own_path(asked: list[tuple[Call, JobPlan]]) -> None:
    horovod.run(print, executable="/bin/sh")
    assert asked[0][0].search_path is None


def test_what_asks_for_nothing_special_is_accepted(asked: list[tuple[Call, JobPlan]]) -> None:
    plan = plan_of(
        asked,
        num_proc=np.int64(2),
        hosts="localhost:1,127.0.0.1:3",
        start_timeout=5,
        ssh_port=2222,
        ssh_identity_file="~/.ssh/id",
        disable_cache=True,
        output_filename="logs",
        verbose=2,
        use_gloo=True,
        use_mpi=False,
        network_interfaces=["lo", "eth0"],
    )
    assert [slot.local_rank for slot in plan.slots] == [0, 1]
    assert plan.extra_environment == {"HOROVOD_START_TIMEOUT": "5"}
    assert plan.output_directory == Path("logs")
    assert plan.is_verbose
    assert plan_of(asked, network_interfaces="lo,eth0", use_gloo=False).slots


def test_other_machines(asked: list[tuple[Call, JobPlan]]) -> None:
    plan = plan_of(
        asked,
        num_proc=2,
        hosts="localhost:1,a.invalid:2",
        ssh_port=2222,
        ssh_identity_file=Path("key"),
        network_interfaces="eth0,ib0",
        start_timeout=70,
    )
    assert [slot.hostname for slot in plan.slots] == ["localhost", "a.invalid"]
    assert plan.others == OtherHosts(
        {"a.invalid": ()}, SshOptions(2222, "key"), ("eth0", "ib0"), 70.0
    )


def test_the_start_timeout_of_the_environment(
    asked: list[tuple[Call, JobPlan]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "55")
    assert plan_of(asked).others.start_timeout_s == 55
    assert plan_of(asked, start_timeout=5).others.start_timeout_s == 5


def test_a_hostfile(asked: list[tuple[Call, JobPlan]], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    plan = plan_of(asked, num_proc=2, hostfile=tmp_path / "hosts")
    assert len(plan.slots) == 2
    with pytest.raises(FileNotFoundError):
        horovod.run(print, hostfile=str(tmp_path / "none"))


def test_old_names_still_work_and_say_so(asked: list[tuple[Call, JobPlan]]) -> None:
    with pytest.warns(DeprecationWarning, match="np is deprecated; use num_proc") as caught:
        assert len(plan_of(asked, np=3).slots) == 3
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="network_interface is deprecated"):
        assert plan_of(asked, network_interface="lo,eth0").slots
    with pytest.warns(DeprecationWarning, match="min_np is deprecated; use min_num_proc"):
        elastic = plan_of(asked, min_np=1, num_proc=2, hosts="a:1,b:1").elastic
    assert elastic is not None
    assert elastic.limits.min_np == 1
    with pytest.warns(DeprecationWarning, match="max_np is deprecated"):
        elastic = plan_of(asked, max_np=2, host_discovery_script="./hosts.sh").elastic
    assert elastic is not None
    assert elastic.limits.max_np == 2


def test_an_elastic_job(asked: list[tuple[Call, JobPlan]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "7.5")
    plan = plan_of(
        asked,
        num_proc=4,
        min_num_proc=np.int64(2),
        max_num_proc=6,
        slots=3,
        reset_limit=0,
        cooldown_range=[1, 60.5],
        host_discovery_script=Path("hosts.sh"),
    )
    limits = Limits(4, 2, 6, 0, 7.5, (1.0, 60.5))
    assert plan.elastic == ElasticPlan(limits, "hosts.sh", 3)
    assert (plan.most_results, plan.slots, plan.hosts) == (2, (), ())


def test_an_elastic_job_on_hosts_that_stay(asked: list[tuple[Call, JobPlan]]) -> None:
    plan = plan_of(asked, num_proc=3, min_num_proc=2, hosts="a:2,b:2")
    assert plan.elastic == ElasticPlan(Limits(3, 2, None, None, 600.0, None))
    assert plan.hosts == (HostSlots("a", 2), HostSlots("b", 2))
    here = plan_of(asked, min_num_proc=1, max_num_proc=3, cooldown_range=(1, 9))
    assert here.hosts == (HostSlots("localhost", 3),)
    by_script = plan_of(asked, num_proc=2, host_discovery_script="cat hosts")
    assert by_script.most_results == 2


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"np": 2, "num_proc": 3}, "give num_proc or np, not both"),
        ({"min_np": 2, "min_num_proc": 3}, "give min_num_proc or min_np"),
        ({"hosts": "localhost:1", "hostfile": "x"}, "give hosts or hostfile, not both"),
        ({"hosts": "localhost:1", "host_discovery_script": "x"}, "host_discovery_script, not bo"),
        ({"use_gloo": True, "use_mpi": True}, "give use_gloo or use_mpi, not both"),
        ({"network_interface": "lo", "network_interfaces": "eth0"}, "not both"),
        ({"min_num_proc": 2}, "min_num_proc=2: expected 1 to 1, which is num_proc"),
        ({"min_num_proc": 0}, "min_num_proc=0: expected a number of processes, 1 or more"),
        ({"min_num_proc": 1}, "localhost alone has fewer than 2 hosts.*cooldown_range=.1, 60."),
        ({"min_num_proc": 1, "num_proc": 5, "hosts": "a:2,b:2"}, "5 processes .* have 4 slots"),
        ({"min_num_proc": 1, "use_mpi": True}, "use_mpi=True and an elastic job"),
        ({"num_proc": 3, "max_num_proc": 2, **SCRIPT}, "max_num_proc=2: expected 3, which is num"),
        ({"slots": 0, **SCRIPT}, "slots=0: expected a number of processes, 1 or more"),
        ({"reset_limit": -1, **SCRIPT}, "reset_limit=-1: expected a number of resets, 0 or more"),
        ({"cooldown_range": (0, 2), **SCRIPT}, "cooldown_range=.0, 2.: .* expected at least 1"),
        ({"cooldown_range": 5, **SCRIPT}, "cooldown_range=5: expected two numbers of seconds"),
        ({"host_discovery_script": " "}, "host_discovery_script=' ': expected a command"),
        ({"hosts": "localhost:1", "num_proc": 2}, "2 processes were asked for"),
        ({"hosts": "localhost"}, "expected name:slots"),
        ({"num_proc": 0}, "num_proc=0: expected a number of processes, 1 or more"),
        ({"num_proc": -1}, "num_proc=-1"),
        ({"start_timeout": 0}, "start_timeout=0: expected a number of seconds above 0"),
        ({"start_timeout": float("nan")}, "start_timeout=nan"),
        ({"ssh_port": 70000}, "ssh_port=70000: expected a port number"),
        ({"network_interfaces": ["lo", ""]}, "network_interfaces="),
        ({"executable": "./no-such-python"}, "executable='./no-such-python'"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_refused(
    given: dict[str, Any], text: str, asked: list[tuple[Call, JobPlan]]
) -> None:
    with pytest.raises(ValueError, match=text):
        horovod.run(print, **given)
    assert not asked


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"max_num_proc": 1}, "in an elastic job, see min_num_proc"),
        ({"reset_limit": 0}, "in an elastic job"),
        ({"cooldown_range": (1, 2)}, "in an elastic job"),
        ({"slots": 2}, "with host_discovery_script"),
        ({"mpi_args": "-x A"}, "with use_mpi=True"),
    ],
)
def test_what_changes_nothing_is_accepted_with_a_warning(
    given: dict[str, Any], where: str, asked: list[tuple[Call, JobPlan]]
) -> None:
    (name,) = given
    with pytest.warns(UserWarning, match=f"{name}=.* has an effect only {where}") as warned:
        horovod.run(print, **given)
    assert warned[0].filename == __file__
    assert asked[0][1].slots == plan_of(asked).slots


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"num_proc": 1.5}, "num_proc=1.5: expected an integer"),
        ({"ssh_port": "22"}, "ssh_port"),
        ({"reset_limit": 1.5, **SCRIPT}, "reset_limit=1.5: expected an integer"),
        ({"host_discovery_script": 3}, "int"),
    ],
)
def test_wrong_types(given: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        horovod.run(print, **given)


def test_what_is_no_function() -> None:
    with pytest.raises(TypeError, match="func=3: expected a function"):
        horovod.run(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("args", [3, "text"])
def test_arguments_that_are_no_tuple(args: Any) -> None:
    with pytest.raises(TypeError, match="expected a tuple, such as args=\\("):
        horovod.run(print, args)


def test_a_call_of_the_package_itself_is_sent_to_a_framework() -> None:
    with pytest.raises(AttributeError, match=r"'init'; import horovod\.torch or"):
        horovod.init()
    assert not hasattr(horovod, "__wrapped__")


def test_a_process_that_does_not_know_its_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ValueError, match="does not know its Python interpreter"):
        horovod.run(print)
