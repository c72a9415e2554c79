"""The options of ``horovodrun`` for elastic jobs, and their plan."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace

from horovod.launch.model.argument_checks import process_number, whole_number
from horovod.launch.model.hosts import HostSlots
from horovod.launch.model.job_plan import ElasticPlan, JobPlan, Limits, check_hosts
from horovod.launch.remote.job_folder import check_job_id
from horovod.settings import Settings

# Options without an effect on a job that is not elastic.
ELASTIC_OPTIONS = ("max_np", "reset_limit", "blacklist_cooldown_range")


def add_elastic_options(group: argparse._ArgumentGroup) -> None:
    """Add the options of an elastic job to ``group``."""
    add = group.add_argument
    add(
        "--min-np",
        "--min-num-proc",
        dest="min_np",
        type=process_number,
        metavar="N",
        help="go on while there are so many workers, and wait while there are fewer; default: -np",
    )
    add(
        "--max-np",
        "--max-num-proc",
        dest="max_np",
        type=process_number,
        metavar="N",
        help="use no more workers than this; what further slots run waits to take over; default: "
        "use all slots",
    )
    add(
        "--reset-limit",
        type=whole_number("a number of resets, 0 or more", 0, sys.maxsize),
        metavar="N",
        help="end the job instead of resetting it more often than this; default: no limit",
    )
    add(
        "--blacklist-cooldown-range",
        nargs=2,
        type=float,
        metavar=("MIN", "MAX"),
        help="use a machine where a worker failed again after a while that grows from MIN to MAX "
        "seconds with each failure; default: never",
    )
    add(
        "--job-id",
        type=_job_id,
        metavar="NAME",
        help="a name for the job, under which --doctor finds it; if horovodrun dies, workers of "
        "an elastic job go on and wait for it, for the elastic timeout, and the same command line "
        "takes them over; default: of the time and chance, without a horovodrun to wait for",
    )


def is_elastic(given: argparse.Namespace) -> bool:
    """Whether the command line describes an elastic job."""
    return given.host_discovery_script is not None or given.min_np is not None


def elastic_job(given: argparse.Namespace, plan: JobPlan, environ: Mapping[str, str]) -> JobPlan:
    """``plan`` with what the command line says of an elastic job.

    ``environ`` has the settings that it chose.

    Raises:
        ValueError: options are missing or contradict each other.
    """
    count = given.num_proc
    if count is None:
        raise ValueError("say with -np how many processes to start with, for example -np 2")
    bounds = given.blacklist_cooldown_range
    limits = Limits(
        np=count,
        min_np=count if given.min_np is None else given.min_np,
        max_np=given.max_np,
        reset_limit=given.reset_limit,
        elastic_timeout_s=Settings.from_env(environ).elastic_timeout_s,
        cooldown=None if bounds is None else (bounds[0], bounds[1]),
    )
    script, hosts = given.host_discovery_script or "", plan.hosts
    if given.host_discovery_script is None:
        hosts = hosts or (HostSlots("localhost", given.max_np or count),)
        check_hosts(hosts, limits, "--blacklist-cooldown-range 1 60")
    elif not script.strip():
        raise ValueError("--host-discovery-script: expected a command, for example ./hosts.sh")
    elastic = ElasticPlan(limits, script, given.slots_per_host, given.job_id or "")
    return replace(plan, hosts=hosts, elastic=elastic)


def _job_id(text: str) -> str:
    try:
        return check_job_id(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
