"""Which task of a job this process is, and where the others are. Standard library only."""

import json
from collections.abc import Mapping

from course_lib.cluster.job import Job
from course_lib.errors import CourseError

FIRST_PORT = 23450  # of a job's first task, unless COURSE_FIRST_PORT is set


def identify_task(job: Job, environment: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """This task's name and every task's address.

    The local supervisor gives both. Slurm and Kubernetes give a number and,
    through COURSE_HOSTS, one host per task; an operator may give TF_CONFIG.

    Raises  CourseError when these variables do not fit the job
    """
    if "COURSE_TASK" in environment:
        return environment["COURSE_TASK"], json.loads(environment["COURSE_ADDRESSES"])
    if "TF_CONFIG" in environment:
        return _from_tf_config(job, environment["TF_CONFIG"])
    rank = environment.get("SLURM_PROCID", environment.get("JOB_COMPLETION_INDEX"))
    hosts = [host for host in environment.get("COURSE_HOSTS", "").split(",") if host]
    if rank is None or len(hosts) != len(job.tasks):
        raise CourseError(
            f"this process cannot tell which task it is: the job has {len(job.tasks)} tasks and COURSE_HOSTS names "
            f"{len(hosts)} hosts; start it with `course cluster run`, sbatch or kubectl."
        )
    first = int(environment.get("COURSE_FIRST_PORT", FIRST_PORT))  # one port each, because tasks may share a host
    addresses = {name: f"{host}:{first + rank}" for rank, (name, host) in enumerate(zip(job.tasks, hosts))}
    return job.tasks[int(rank)], addresses


def read_tf_config(text: str) -> tuple[str, dict[str, str]]:
    """The task that a TF_CONFIG describes, and every task's address.

    Raises  CourseError when it is not one
    """
    try:
        config = json.loads(text)
        addresses = {
            f"{kind} {i}": str(address) for kind, group in config["cluster"].items() for i, address in enumerate(group)
        }
        return f"{config['task']['type']} {config['task']['index']}", addresses
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CourseError(f"TF_CONFIG is not a JSON object with cluster and task: {text[:80]!r}; unset it.") from None


def _from_tf_config(job: Job, text: str) -> tuple[str, dict[str, str]]:
    name, addresses = read_tf_config(text)
    wanted = [task for task in job.tasks if not task.startswith("evaluator")]
    if sorted(addresses) != sorted(wanted) or name not in job.tasks:
        raise CourseError(
            f"TF_CONFIG disagrees with the job: it makes this {name} of {', '.join(addresses)}, and the job has "
            f"{', '.join(job.tasks)}; unset TF_CONFIG, or give the job the same numbers."
        )
    return name, addresses
