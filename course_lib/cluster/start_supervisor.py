"""Start a job's supervisor in a new Python, or in a fork of a process that has imported the framework.

Importing TensorFlow and Keras takes 7 s of a core on the course's own machine, for every task of every job. A fork of a
process that has imported them takes a few hundredths of a second. That process, the fork server, is started for the
first job that can use it and ends with the process that started it. The standard library's (multiprocessing with
set_forkserver_preload) runs the starter's script again in each child and keeps the environment of its first start.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from course_lib.cluster.fork import ENVIRONMENT_SPACE
from course_lib.cluster.job import Job
from course_lib.cluster.processes import Forked
from course_lib.errors import CourseError

# Set for each task, or for each test: no framework reads them when it is imported.
UNREAD = {"TF_CONFIG", "CUDA_VISIBLE_DEVICES", "no_grpc_proxy", "TMPDIR", "PYTEST_CURRENT_TEST"}
LONGEST_ANSWER = 100  # bytes


def start_supervisor(job: Job, folder: str, keep: bool, ports: Sequence[int], lock: int) -> subprocess.Popen | Forked:
    """Start the supervisor of FOLDER/job.json.

    keep  the folder stays when the supervisor ends
    lock  an open file that holds the folder's lock; the supervisor keeps it for as long as it lives
    """
    arguments = [folder, "keep" if keep else "remove", *map(str, ports)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    with open(Path(folder) / "logs" / "supervisor.log", "w") as log:
        if can_fork(job):
            return _fork(job, environment, arguments, log, lock)
        return subprocess.Popen(
            [sys.executable, "-m", "course_lib.cluster.supervisor", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=[lock],
            text=True,
            start_new_session=True,
            env=environment,
        )


def can_fork(job: Job) -> bool:
    """Whether forks can be a job's tasks: on Linux, with a framework to import, and without GPUs or a link.

    All forks order a set alike. Where the job sets PYTHONHASHSEED, each task starts Python itself.
    """
    if sys.platform != "linux" or job.resources.gpus or job.link or "PYTHONHASHSEED" in job.environment:
        return False
    return job.needs_framework


def modules(job: Job) -> tuple[str, ...]:
    """What a job's tasks find imported."""
    return job.framework, "keras"


def settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a framework may read when it is imported."""
    return {name: value for name, value in environment.items() if name not in UNREAD}


class ForkServer:
    """A process that has imported some modules under one environment, seen from the process that wants forks of it."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]):
        self._requests, theirs = socket.socketpair()
        nothing = subprocess.DEVNULL
        with theirs:
            server = subprocess.Popen(
                [sys.executable, "-m", "course_lib.cluster.forkserver", str(theirs.fileno()), *modules],
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                # NumPy's threads would not survive a fork
                env={"OPENBLAS_NUM_THREADS": "1", **environment, **ENVIRONMENT_SPACE},
            )
        self.alive = lambda: server.poll() is None  # a fork of this process has no children
        self.stop = weakref.finalize(self, _stop, self._requests, server, os.getpid())

    def supervise(self, arguments: Sequence[str], log: IO, lock: int) -> Forked:
        """A fork that is what `python -m course_lib.cluster.supervisor ARGUMENTS` would be.

        Raises  CourseError when the server has ended
        """
        (commands, stdin), (stdout, events) = os.pipe(), os.pipe()
        ours = open(stdin, "w"), open(stdout)
        request = json.dumps({"arguments": list(arguments), "directory": os.getcwd()}).encode()
        try:
            socket.send_fds(self._requests, [request], [commands, events, log.fileno(), lock])
            answer = self._requests.recv(LONGEST_ANSWER)
        except OSError:
            answer = b""
        finally:
            os.close(commands)
            os.close(events)
        if not answer:
            raise CourseError(
                "the process that forks a cluster's tasks has ended; is memory full? Start the cluster again."
            )
        return Forked(int(answer), stdin=ours[0], stdout=ours[1])


_servers: dict[tuple, ForkServer] = {}  # one at most: each holds half a GiB
_one_at_a_time = threading.Lock()


def _fork(job: Job, environment: Mapping[str, str], arguments: Sequence[str], log: IO, lock: int) -> Forked:
    """A supervisor from a fork server with this environment, because frameworks read their settings when imported."""
    read = settings({**environment, "KERAS_BACKEND": job.framework, **job.environment})
    wanted = modules(job), *sorted(read.items())
    with _one_at_a_time:
        try:
            if wanted not in _servers or not _servers[wanted].alive():
                stop_server()
                _servers[wanted] = ForkServer(modules(job), read)
            return _servers[wanted].supervise(arguments, log, lock)
        except BaseException:  # the next request would read this one's answer
            stop_server()
            raise


def stop_server() -> None:
    """End this process's fork server, if it has one. Supervisors that it forked go on."""
    while _servers:
        _servers.popitem()[1].stop()


def _stop(requests: socket.socket, server: subprocess.Popen, owner: int) -> None:
    requests.close()
    if os.getpid() == owner:  # and not a fork of it
        server.kill()  # it may be in the middle of an import
        server.wait()
