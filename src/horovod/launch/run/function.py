"""``horovod.run``: calls a function in many processes and returns the results by rank.

The caller pickles the call (``call.py``), starts the launcher as one child process
(``supervisor.py``) and waits for it. The calling process keeps its signal handlers, environment and
children, so any thread of a script, a test or a notebook may call.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import takewhile
from typing import Any, TypeVar

from horovod.launch.calls.call import (
    Call,
    CallFiles,
    is_result,
    memory_file,
    read_failure,
    write_call,
)
from horovod.launch.embedded.agent_news import AgentDirectory
from horovod.launch.model.job_plan import JobPlan
from horovod.launch.run.call_error import elastic_error, job_error, result_of
from horovod.launch.run.options import RunOptions, check_options
from horovod.launch.run.supervision import supervise
from horovod.launch.workers.python_command import python_command

T = TypeVar("T")


def run(
    func: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[int, int] | None = None,
    hosts: str | None = None,
    hostfile: str | os.PathLike[str] | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | os.PathLike[str] | None = None,
    verbose: int | bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | Iterable[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[T]:
    """Call ``func(*args, **kwargs)`` in ``num_proc`` new processes and return the results by rank.

    Blocks until all have ended; from any thread. In the processes ``horovod.torch.init()`` and its
    like make one world, as under ``horovodrun``. They have this one's environment, working
    directory and ``sys.argv``, read nothing from standard input and write, line by line with their
    rank in front, to this process's descriptors 1 and 2. Function, arguments and results are
    pickled with cloudpickle (what a notebook, a script or a function body defines travels whole)
    and go through memory that only this process and its children can open, and to other machines
    through ssh.

    ``min_num_proc`` or ``host_discovery_script`` makes the job elastic: workers that are lost are
    replaced, and hosts are used while they are there. ``func`` then calls a function that
    ``hvd.elastic.run`` decorates. There are as many results as workers are needed at least, those
    of the first ranks in the end.

    Args:
        num_proc: processes to start; ``np`` is its deprecated name. An elastic job starts as many
            as there are slots, from this number on.
        min_num_proc: an elastic job goes on with so many, and waits with fewer, for the seconds of
            ``HOROVOD_ELASTIC_TIMEOUT`` (600); default ``num_proc``. ``min_np`` is its deprecated
            name.
        max_num_proc: an elastic job uses no more than this; what further slots run waits to take
            over. Default all slots. ``max_np`` is its deprecated name.
        slots: of hosts that ``host_discovery_script`` names without a number.
        reset_limit: end an elastic job instead of making a new world more often; default never.
        cooldown_range: ``(1, 60)``: use a host where a worker failed again after a while that grows
            between these seconds with each failure; default never.
        hosts: ``"localhost:2,node-1:4"``: machines and their slots, filled in this order;
            ``hostfile`` is a file of the same with lines ``name slots=N``.
        host_discovery_script: a command that prints a line ``name`` or ``name:slots`` for each host
            that there is, asked every second.
        ssh_port, ssh_identity_file: for ssh to other machines; its configuration says the rest.
        network_interfaces: names, or a comma string: those that machines may use to reach each
            other; default all. ``network_interface`` is its deprecated name.
        start_timeout: seconds (30) that other machines may take to start their processes, and
            that the processes wait for each other in ``init``.
        output_filename: folder that keeps each rank's lines in ``rank.<R>/stdout`` and ``stderr``;
            in an elastic job each worker's, by its number.
        verbose: true says on standard error which processes start and end.
        executable: the workers' Python, on all machines; default this one. Another one finds
            modules by its own search path and must have the same versions of Python and of what
            travels.
        use_gloo: accepted, the native engine needs no MPI; so is ``disable_cache``, since nothing
            is remembered between jobs.
        use_mpi: let ``mpirun`` start the processes, on hosts that it reaches itself; their data
            goes over MPI. ``mpi_args`` are more words for it, in one text.

    Raises:
        ValueError: an argument that contradicts another or that this version cannot serve.
        TypeError: an argument of another kind; pickling what cannot travel raises it, too.
        OSError: the hostfile cannot be read, or the output folder not be made.
        RuntimeError: a machine cannot be reached or was lost; or a process raised, exited (also
            with 0) or died before it had a result, or its result cannot be pickled. The text names
            rank, exception and traceback of the first; the exception itself is ``__cause__`` if it
            can be pickled. The others are ended, and none is left. KeyboardInterrupt ends them in
            the same way. An elastic job fails when it cannot go on after such a failure, and in
            any case when ranks disagree about a collective.
    """
    return run_as_given(dict(locals()))  # nothing but the parameters


def run_as_given(given: dict[str, Any], variables: Mapping[str, str] | None = None) -> list[Any]:
    """``run`` with its arguments by name; the processes also get these ``variables``."""
    function, arguments = given.pop("func"), given.pop("args")
    keywords = given.pop("kwargs") or {}
    if not callable(function):
        raise TypeError(f"func={function!r}: expected a function")
    if isinstance(arguments, str) or not isinstance(arguments, Iterable):
        raise TypeError(f"args={arguments!r}: expected a tuple, such as args=({arguments!r},)")
    options = check_options(given)
    # With this process's ``sys.argv`` and, if the workers run its Python, its search path.
    search_path = tuple(sys.path) if options.executable == sys.executable else None
    call = Call(function, tuple(arguments), dict(keywords), tuple(sys.argv), search_path)
    environ = {**os.environ, **(variables or {})}
    if options.uses_mpi:
        return _run_by_mpi(call, options, environ)
    return run_call(call, options.plan, environ)


def _run_by_mpi(call: Call, options: RunOptions, environ: Mapping[str, str]) -> list[Any]:
    # Here, because few calls need it.
    from horovod.launch.run.mpi_function import call_by_mpirun
    from horovod.launch.run.mpi_launch import check_mpi
    from horovod.launch.schedulers.mpirun import MpiJob

    check_mpi("use_mpi")
    plan = options.plan
    job = MpiJob(
        command=plan.command,
        process_count=len(plan.slots),
        hosts=plan.hosts,
        ssh=plan.others.ssh,
        interfaces=plan.others.interfaces,
        output_directory=plan.output_directory,
        mpi_options=options.mpi_options,
    )
    return call_by_mpirun(job, call, {**environ, **plan.extra_environment})


def run_call(
    call: Call,
    plan: JobPlan,
    environ: Mapping[str, str] | None = None,
    streams: tuple[int | None, int | None] = (None, None),
    agents: AgentDirectory | None = None,
    complete: Callable[[JobPlan], JobPlan] = lambda plan: plan,
) -> list[Any]:
    """The results of ``call`` by rank; raises as ``run`` does.

    The launcher, and so the workers, have ``environ`` and write to the descriptors ``streams``, by
    default those of this process. A plan without a command runs on the Python of each agent. An
    elastic job with ``agents`` runs on those alone. ``complete`` adds to the plan what need not be
    known before the launcher's process has been started; it may block.
    """
    if plan.output_directory is not None:
        plan.output_directory.mkdir(parents=True, exist_ok=True)
    command = plan.command or tuple(python_command("", "calls.worker"))
    elastic = plan.elastic and replace(plan.elastic, has_embedded_agents=agents is not None)
    with ExitStack() as open_files:
        call_file, *answers = [
            open_files.enter_context(memory_file()) for _ in range(1 + plan.most_results)
        ]
        write_call(call, call_file)
        files = CallFiles(call_file.fileno(), tuple(answer.fileno() for answer in answers))
        plan = replace(plan, command=command, call=files, elastic=elastic)
        outcome = supervise(
            lambda: complete(plan),
            executable=sys.executable or command[0],
            is_elastic=elastic is not None,
            files=files,
            environ=environ,
            streams=streams,
            agents=agents,
        )
        wanted = files.answer_fds[: plan.least_results]
        if outcome.status != 0 or not all(map(is_result, wanted)):
            failures = [read_failure(answer) for answer in answers]
            if elastic is not None:
                raise elastic_error(outcome, failures[0])
            raise job_error(outcome, failures)
        results = takewhile(lambda answer: is_result(answer.fileno()), answers)
        return [result_of(rank, answer) for rank, answer in enumerate(results)]
