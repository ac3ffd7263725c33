"""One attempt at a task as a process: its environment, how it starts, and what its supervisor knows of its end."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from course_lib.cluster import processes
from course_lib.cluster.fork import fork
from course_lib.cluster.job import Job
from course_lib.cluster.processes import Forked
from course_lib.cluster.task import run_task


class TaskProcess:
    """One attempt at one task, and what is known of its end."""

    def __init__(self, name: str, attempt: int, process: subprocess.Popen | Forked):
        self.name, self.attempt, self.process = name, attempt, process
        self.code: int | None = None
        self.returned = False
        self.error = ""
        self.asked = False  # to end
        self.replaced = False  # by the next attempt, or soon
        self.end: asyncio.Task

    def signal(self, number: int) -> None:
        """Send a signal to the task and everything in its process group."""
        if self.code is None:
            self.asked = self.asked or number == signal.SIGKILL
            processes.signal_group(self.process.pid, number)

    @property
    def wanted(self) -> bool:
        """It ended as it was asked to; an error of its own is none, even if a kill was on its way."""
        return self.returned or (self.asked and self.code == -signal.SIGKILL and not self.error)


def task_environment(
    job: Job, folder: Path, addresses: Mapping[str, str], name: str, attempt: int, channel: int
) -> dict[str, str]:
    """All variables of a task: the supervisor's own, the job's, and the task's address, folder and channel."""
    environment = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
    gpus, first = job.resources.gpus, job.tasks.index(name) * job.resources.gpus
    ours = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(first + gpus)))).split(",")
    hosts = {address.rsplit(":", 1)[0] for address in addresses.values()}
    return {
        **environment,
        "CUDA_VISIBLE_DEVICES": ",".join(ours[first : first + gpus]),  # empty: a framework would take every GPU
        "no_grpc_proxy": ",".join(sorted(hosts)),  # a web proxy does not know this machine's tasks
        **job.environment,
        "COURSE_ATTEMPT": str(attempt),
        "COURSE_ADDRESSES": json.dumps(dict(addresses)),
        "COURSE_CHANNEL": str(channel),
        processes.MARK: str(folder),
        processes.TASK: name,
        "TMPDIR": str(folder / "tmp"),  # a task that is killed leaves its temporary files
        "PYTHONUNBUFFERED": "1",
    }


def start_task(
    job: Job, folder: Path, name: str, environment: Mapping[str, str], channel: int, prefix: Sequence[str] = ()
) -> subprocess.Popen:
    """Start a task in a new Python.

    channel  an open file that the task keeps, for its reports
    prefix   words before the command, such as those that enter a network namespace
    """
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "course_lib.cluster", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        pass_fds=[channel],
        start_new_session=True,
    )
    processes.pin(process.pid, job.tasks.index(name), job.resources.cpus)
    return process


def fork_task(job: Job, folder: Path, name: str, environment: Mapping[str, str], channel: int) -> Forked:
    """Start a task in a fork of this process, with what the fork server has imported."""

    def run() -> int:
        processes.pin(0, job.tasks.index(name), job.resources.cpus)
        return run_task(folder, os.environ)

    return fork(run, environment, keep=channel)
