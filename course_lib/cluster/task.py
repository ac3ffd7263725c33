"""One task of a job, from inside its process: its place, its reports, its result.

`python -m course_lib.cluster FOLDER` runs FOLDER/job.json wherever it is started:
by the local supervisor, by srun, or in a pod. Taught in notebooks/03.
"""

import ctypes
import faulthandler
import json
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from course_lib import devices
from course_lib.cluster.job import Job
from course_lib.errors import CourseError

FIRST_PORT = 23450  # of a job's first task, where the tasks have hosts of their own
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Task:
    """A program's first argument: which task of which cluster it is.

    name       "worker 0"
    addresses  every task's name to its "host:port"
    folder     shared by all tasks and kept over restarts; checkpoints belong here
    attempt    0, and one more after each restart
    """

    name: str
    addresses: Mapping[str, str]
    folder: Path
    attempt: int = 0
    _channel: object = field(default=None, repr=False, compare=False)

    @property
    def type(self) -> str:
        return self.name.split()[0]

    @property
    def index(self) -> int:
        return int(self.name.split()[1])

    @property
    def workers(self) -> int:
        return sum(name.startswith("worker") for name in self.addresses)

    @property
    def is_chief(self) -> bool:
        """True for the one task that saves and logs: the coordinator, or else the first worker."""
        return self.name == ("chief 0" if "chief 0" in self.addresses else "worker 0")

    def report(self, **values) -> None:
        """Tell whoever watches: numbers and strings by name, e.g. step=7, loss=0.31."""
        self._tell("report", values=values)

    def _tell(self, event: str, **content) -> None:
        self._channel.write(json.dumps({"event": event, "task": self.name, **content}) + "\n")
        self._channel.flush()


def run_task(folder: Path, environment: dict[str, str]) -> int:
    """Run this process's task; return its exit code."""
    faulthandler.enable()
    job = Job.from_json((folder / "job.json").read_text())
    name, addresses = find_place(job, environment)
    released = threading.Event()
    shared = folder / "shared"
    for path in (shared, folder / "results", folder / "reports"):
        path.mkdir(exist_ok=True)
    task = Task(name, addresses, shared, int(environment.get("COURSE_ATTEMPT", 0)), _open_channel(environment, folder, name, released))
    environment.update(job.task_environment(name, addresses))
    devices.quieten()
    try:
        if name not in job.programs:
            _serve(task)
        result = job.program.load()(task, **job.arguments)
        _store(result, folder / "results" / f"{name}.pickle")
    except BaseException as error:
        text = _own_traceback(error, job)
        print(text, file=sys.stderr, flush=True)
        task._tell("failed", error=type(error).__name__, message=str(error), traceback=text)
        return 1
    task._tell("returned")
    released.wait()  # leaving while another task is in a collective would break it
    return 0


def find_place(job: Job, environment: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """This task's name and every task's address.

    The local supervisor gives both. Slurm and Kubernetes give a number and,
    through COURSE_HOSTS, one host per task; an operator may give TF_CONFIG.

    Raises  CourseError when what is given does not fit the job
    """
    if "COURSE_TASK" in environment:
        return environment["COURSE_TASK"], json.loads(environment["COURSE_ADDRESSES"])
    if "TF_CONFIG" in environment:
        return _from_tf_config(job, json.loads(environment["TF_CONFIG"]))
    rank = environment.get("SLURM_PROCID", environment.get("JOB_COMPLETION_INDEX"))
    hosts = environment.get("COURSE_HOSTS", "").split(",")
    if rank is None or len(hosts) != len(job.tasks):
        raise CourseError(
            f"this process does not know its place: the job has {len(job.tasks)} tasks and COURSE_HOSTS names "
            f"{len(hosts) if hosts != [''] else 0} hosts; start it with `course cluster run`, sbatch or kubectl."
        )
    ports = range(FIRST_PORT, FIRST_PORT + len(hosts))  # one each, so that tasks may share a host
    addresses = {name: f"{host}:{port}" for name, host, port in zip(job.tasks, hosts, ports)}
    return job.tasks[int(rank)], addresses


def _from_tf_config(job: Job, config: Mapping) -> tuple[str, dict[str, str]]:
    addresses = {f"{kind} {i}": address for kind, group in config["cluster"].items() for i, address in enumerate(group)}
    name = f"{config['task']['type']} {config['task']['index']}"
    wanted = [task for task in job.tasks if not task.startswith("evaluator")]
    if sorted(addresses) != sorted(wanted) or name not in job.tasks:
        raise CourseError(
            f"TF_CONFIG disagrees with the job: it makes this {name} of {', '.join(addresses)}, and the job has "
            f"{', '.join(job.tasks)}; unset TF_CONFIG, or give the job the same numbers."
        )
    return name, addresses


def _open_channel(environment: Mapping[str, str], folder: Path, name: str, released: threading.Event):
    """Where reports go: the supervisor's socket, or a file where there is none."""
    if "COURSE_CHANNEL" not in environment:
        released.set()
        return open(folder / "reports" / f"{name}.jsonl", "a")
    channel = socket.socket(fileno=int(environment["COURSE_CHANNEL"]))
    _die_with_parent()
    threading.Thread(target=_follow, args=(channel, released), daemon=True).start()
    return channel.makefile("w")


def _follow(channel: socket.socket, released: threading.Event) -> None:
    """Wait for the supervisor's word to leave; when the supervisor itself is gone, go at once."""
    if not channel.recv(1):
        os.killpg(os.getpgid(0), signal.SIGKILL)
    released.set()


def _die_with_parent() -> None:
    """On Linux the kernel sees to it, also while this task is paused."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve(task: Task) -> None:
    """Be a worker or a parameter server that a coordinator drives; never returns."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    options = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=max(4, task.workers + 1))  # fewer can deadlock
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=task.type, task_index=task.index, protocol="grpc", config=options
    )
    task.report(serving=1)
    server.join()


def _store(result: object, path: Path) -> None:
    try:
        content = pickle.dumps(result)
    except Exception as error:  # pickle has many ways to say no
        raise CourseError(
            f"the program's result cannot travel back ({error}); return numbers, arrays, lists and dicts."
        ) from None
    path.with_suffix(".part").write_bytes(content)
    path.with_suffix(".part").replace(path)


def _own_traceback(error: BaseException, job: Job) -> str:
    """From the program's first frame on; the launcher's own frames say nothing to its author."""
    frame = error.__traceback__
    while frame and frame.tb_frame.f_code.co_filename == __file__:
        frame = frame.tb_next
    if isinstance(error, CourseError) or frame is None:
        return f"{type(error).__name__}: {error}"
    return "".join(traceback.format_exception(type(error), error, frame)).rstrip()
