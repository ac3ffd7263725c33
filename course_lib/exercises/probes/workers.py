"""Run a learner's program on real worker processes for a check. Needs course_lib.cluster; the programs need TensorFlow.

The processes end, and their folder goes, whatever the program does.
"""

import dataclasses
import re
import textwrap
from collections.abc import Callable

from course_lib import cluster
from course_lib.cluster.outcome import first_cause
from course_lib.errors import CourseError
from course_lib.exercises.ask import WRITE_HERE, Stopped, in_one_line

WATCHED = "watched_"  # begins the name of the function that calls a watched program
LIMIT_SECONDS = 200  # some 15 s on two quiet cores, a restart included; the rest is for busy ones


def run(
    job: object,
    name: str,
    disturb: Callable[[cluster.LocalCluster], None] = lambda running: None,
    watch: Callable | None = None,
) -> cluster.Outcome:
    """The outcome of a learner's job, on CPUs, so that any machine gives the same answer.

    name     what a verdict calls the job's maker, e.g. "make_job"
    disturb  what happens to the running cluster, such as a kill
    watch    a function of a module, watch(program, task, **arguments) -> a dict with the program's "result",
             which runs in the program's place and calls it
    Raises   Stopped when the job is none, or its program is blank, raises, or runs past the limit
    """
    if not isinstance(job, cluster.Job):
        line = f"{name} returns a {type(job).__name__}, and a cluster.Job is expected"
        raise Stopped("raised", line, line)
    _require_written(job)
    limits = dataclasses.replace(job.resources, limit_seconds=LIMIT_SECONDS)
    environment = {**job.environment, "CUDA_VISIBLE_DEVICES": "-1"}  # workers cannot share one GPU in a collective
    try:
        job = dataclasses.replace(job, resources=limits, environment=environment)
        with cluster.start(_watched(job, watch) if watch else job, show=None) as running:
            disturb(running)
            outcome = running.outcome()
    except cluster.RunFailed as failed:
        raise _failure(failed.cause, job.program.file, otherwise=str(failed)) from None
    except CourseError as error:
        raise Stopped("raised", str(error), str(error)) from None
    results = [found["result"] if watch else found for found in outcome.results.values()]
    if any(result is None or result is ... for result in results):
        raise Stopped("nothing", f"{job.program.function} returned nothing; does it end with a `return`?")
    return outcome


def job(program: object, **description) -> cluster.Job:
    """The job that runs a learner's function. Raises Stopped when it is blank or cannot travel to other processes."""
    try:
        made = cluster.Job(program, **description)
    except CourseError as error:
        raise Stopped("raised", str(error), str(error)) from None
    _require_written(made)
    return made


def _watched(job: cluster.Job, watch: Callable) -> cluster.Job:
    """A job whose program is called by `watch`. Its own lines keep their numbers."""
    program = job.program
    more = f"""

        def {WATCHED}{program.function}(task, **arguments):
            from {watch.__module__} import {watch.__name__}

            return {watch.__name__}({program.function}, task, **arguments)
        """
    text = program.text or f"from {program.module} import {program.function}"
    watched = dataclasses.replace(
        program, function=f"{WATCHED}{program.function}", text=text + textwrap.dedent(more), module=None
    )
    return dataclasses.replace(job, program=watched)


def _require_written(job: cluster.Job) -> None:
    if WRITE_HERE in (job.program.text or ""):
        raise Stopped("blank", f"{job.program.function} is still blank")


def failure_at_first(running: cluster.LocalCluster) -> Stopped | None:
    """What ended the first attempt where a task of it failed by itself; None where none did."""
    cause = first_cause([exit for exit in running.exits if exit.attempt == 0])
    return cause and _failure(cause, running.job.program.file, otherwise=str(cause))


def _failure(cause: cluster.Exit | None, file: str, otherwise: str) -> Stopped:
    """A task's exception, and the last of the program's own lines that led to it; other words where it left none."""
    if not cause or not cause.error:
        return Stopped("raised", otherwise, otherwise)
    line = f"{cause.task} failed: {in_one_line(cause.error, cause.message)}"
    if own := re.findall(rf'File "{re.escape(file)}", line (\d+), in (?!{WATCHED})(\w+)\n +(.*)', cause.traceback):
        number, function, source = own[-1]
        line += f", in {function}, line {number} of the program: {source}"
    return Stopped("raised", line, f"{cause.error}: {cause.message}")
