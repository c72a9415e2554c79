"""What a file comes to: names, folders, variables, GPUs, how many run at a time; and its table."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from horovod.launch.experiment.command import (
    CONFIGURATION,
    _make_folder,
    free_number,
    gpu_ids,
    show_plan,
    show_results,
    take_number,
)
from horovod.launch.experiment.parameters import Parameter
from horovod.launch.experiment.plan import ExperimentPlan, Site, make_plan
from horovod.launch.experiment.runner import Record, State
from horovod.launch.experiment.schema import ExperimentFile, Unused, Workers, read_experiment
from horovod.launch.experiment.shares import SiteHost
from horovod.launch.model.job_plan import JobPlan, OtherHosts
from horovod.launch.model.ssh import SshOptions

GRID = (Parameter("lr", ("0.1", "1e-6")), Parameter("lr-decay", ("a", "b")))


def plan_for(
    file: ExperimentFile, *, gpu_count: int = 0, slot_limit: int | None = None, number: int = 3
) -> ExperimentPlan:
    gpu_ids = tuple(f"g{index}" for index in range(gpu_count))
    site = Site(Path("/out/demo"), (SiteHost("localhost", slot_limit, gpu_ids),))
    return make_plan(file, site, number)


def test_experiments_of_a_set_have_names_lines_variables_and_folders() -> None:
    file = ExperimentFile("demo", ("a", "b {{lr}} {{ lr-decay }}"), parameters=GRID)
    plan = plan_for(file)
    assert [experiment.name for experiment in plan.experiments] == ["3.1", "3.2", "3.3", "3.4"]
    third = plan.experiments[2]
    assert third.lines == ("a", "b 1e-6 a")
    assert third.variables == {"LR": "1e-6", "LR_DECAY": "a"}
    assert third.output_directory == Path("/out/demo/3/3")


def test_the_only_experiment_of_a_file_has_the_number_itself() -> None:
    (experiment,) = plan_for(ExperimentFile("demo", ("a",))).experiments
    assert (experiment.name, experiment.output_directory) == ("3", Path("/out/demo/3"))


def test_the_job_of_a_line() -> None:
    file = ExperimentFile("demo", ("a", "b"), Workers(2), parameters=GRID)
    plan = plan_for(file)
    options = JobPlan(
        extra_environment={"LR": "lost", "KEPT": "1"},
        is_verbose=True,
        output_directory=Path("logs"),
    )
    job = plan.job(plan.experiments[1], 1, 0, options)
    assert job.command == ("/bin/sh", "-c", "b")
    assert len(job.slots) == 2
    assert job.is_verbose
    assert job.output_directory == Path("logs/3.2/line.2")
    assert job.environment_of(1) == {
        "KEPT": "1",
        "LR": "0.1",
        "LR_DECAY": "b",
        "EXPERIMENT_ID": "3.2",
        "OUTPUT_DIR": "/out/demo/3/2",
        "CUDA_VISIBLE_DEVICES": "",
    }


@pytest.mark.parametrize(
    ("workers", "gpus", "slot_limit", "gpu_count", "places"),
    [
        (1, 0, None, 0, 3),
        (2, 0, 4, 0, 2),
        (2, 0, 9, 0, 3),
        (1, 2, None, 5, 2),
        (1, 2, None, 8, 3),
        (1, 2, 2, 8, 1),
    ],
)
def test_slots_and_gpus_limit_how_many_run_at_a_time(
    workers: int, gpus: int, slot_limit: int | None, gpu_count: int, places: int
) -> None:
    file = ExperimentFile("demo", ("x",), Workers(workers), gpus, GRID, concurrency=3)
    plan = plan_for(file, gpu_count=gpu_count, slot_limit=slot_limit)
    assert len(plan.shares) == places
    limit = f"train.concurrency: 3 wanted; slots and GPUs suffice for {places}"
    assert plan.limit == ("" if places == 3 else limit)


def test_a_plan_without_room_has_a_problem_and_no_shares() -> None:
    plan = plan_for(ExperimentFile("demo", ("x",), Workers(2), 2, GRID, concurrency=3), gpu_count=3)
    assert plan.shares == ()
    assert plan.problem.startswith("train.resources.gpus: 2 workers with 2 each need 4")
    assert plan.limit == ""


@pytest.mark.parametrize(
    ("visible", "ids"),
    [
        ("", ()),
        ("2,5", ("2", "5")),
        (" GPU-a , MIG-b", ("GPU-a", "MIG-b")),
        ("1,-1,2", ("1",)),
        ("1,1", ("1",)),
    ],
)
def test_visible_devices_are_the_gpus(visible: str, ids: tuple[str, ...]) -> None:
    assert gpu_ids({"CUDA_VISIBLE_DEVICES": visible, "PATH": ""}) == ids


@pytest.mark.parametrize(
    ("script", "ids"),
    [
        ("echo 'GPU 0: A'; echo '  MIG 1g: x'; echo 'GPU 1: B'", ("0", "1")),
        ("echo 'no driver' >&2; exit 9", ()),
    ],
)
def test_nvidia_smi_lists_the_gpus(tmp_path: Path, script: str, ids: tuple[str, ...]) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    assert gpu_ids({"PATH": str(tmp_path)}) == ids


def test_no_driver_no_gpus(tmp_path: Path) -> None:
    assert gpu_ids({"PATH": str(tmp_path)}) == ()


def test_numbers_count_up_from_what_is_there(tmp_path: Path) -> None:
    project = tmp_path / "output" / "demo"
    assert free_number(project) == 1
    assert not project.parent.exists()
    assert [take_number(project), take_number(project)] == [1, 2]
    (project / "17").mkdir()
    (project / "notes").write_text("")
    assert take_number(project) == 18


def test_every_folder_has_its_own_copy_of_the_file(tmp_path: Path) -> None:
    text = (
        b"project: demo\ntrain:\n  resources: {gpus: 0}\n  parameters: {lr: [0.1, 1e-6]}\n"
        b"  concurrency: 2\n  run: [a, 'b {{lr}}']\n"
    )
    plan = make_plan(read_experiment(text), Site(tmp_path), 1)
    for experiment in plan.experiments:
        _make_folder(experiment, text)
    copies = [read_experiment((tmp_path / "1" / n / CONFIGURATION).read_bytes()) for n in "12"]
    assert [copy.run for copy in copies] == [("a", "b 0.1"), ("a", "b 1e-6")]
    assert [copy.parameters for copy in copies] == [
        (Parameter("lr", ("0.1",)),),
        (Parameter("lr", ("1e-6",)),),
    ]


def test_the_table_of_a_plan_shows_commands_as_they_are() -> None:
    unused = (Unused("train.image", 4, "has no effect"),)
    file = ExperimentFile("demo", ("[bold]a[/] :cat:", "b {{lr}}"), None, 0, GRID, 9, unused)
    stream = io.StringIO()
    show_plan(plan_for(file, slot_limit=2), stream)
    text = stream.getvalue()
    assert "4, 2 at a time" in text
    assert "1. [bold]a[/] :cat:" in text
    assert text.count("2. b 1e-6") == 2
    assert "/out/demo/3/4" in text
    assert "train.image (line 4) has no effect" in text
    assert "train.concurrency: 4 wanted" in text


def test_the_table_of_results() -> None:
    plan = plan_for(ExperimentFile("demo", ("x",), parameters=GRID[:1]))
    finished, killed = (Record(experiment) for experiment in plan.experiments)
    finished.state, finished.started_s, finished.ended_s = State.FINISHED, 10.0, 3_700.0
    killed.state, killed.reason = State.KILLED, "before its first line"
    stream = io.StringIO()
    show_results([finished, killed], stream)
    rows = [" ".join(line.split()) for line in stream.getvalue().splitlines()]
    assert "3.1 0.1 Finished 1:01:30 /out/demo/3/1" in rows
    assert "3.2 1e-6 Killed before its first line /out/demo/3/2" in rows


def test_a_job_knows_the_other_machines_of_its_share_only() -> None:
    hosts = (SiteHost("here", 2), SiteHost("a", 2), SiteHost("b", 2))
    site = Site(Path("/out/demo"), hosts, {"a": ("10.0.0.1",), "b": ("10.0.0.2", "fd00::2")})
    file = ExperimentFile("demo", ("x",), Workers(3), parameters=GRID, concurrency=4)
    plan = make_plan(file, site, 1)
    assert [share.hosts for share in plan.shares] == [{"here": 2, "a": 1}, {"a": 1, "b": 2}]
    others = OtherHosts(ssh=SshOptions(2222, None), interfaces=("eth1",))
    jobs = [plan.job(plan.experiments[0], 0, place, JobPlan(others=others)) for place in (0, 1)]
    assert [set(job.others.addresses) for job in jobs] == [{"a"}, {"a", "b"}]
    assert {(job.others.ssh, job.others.interfaces) for job in jobs} == {
        (SshOptions(2222, None), ("eth1",))
    }
