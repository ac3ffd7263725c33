"""One task of a job, from inside its process: its identity, its reports, its result.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from course_lib import devices
from course_lib.cluster.job import Job
from course_lib.cluster.own_task import identify_task
from course_lib.cluster.rendezvous import Rendezvous, listen
from course_lib.errors import CourseError
from course_lib.hangs import recorder
from course_lib.hangs.own_program import keep_record, watch

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
    _sending: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

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
        """Send numbers and strings by name, e.g. step=7, loss=0.31; scalar tensors become numbers.

        Raises  CourseError for anything else
        """
        try:
            text = json.dumps(values, default=float)
        except (TypeError, ValueError) as error:
            raise CourseError(
                f"a report holds numbers and strings ({error}); return arrays from the program."
            ) from None
        sent = json.loads(text)
        if isinstance(sent.get("step"), int):
            recorder.step(sent["step"])
        self._send("report", values=sent)

    def _send(self, event: str, **content) -> None:
        with self._sending:  # programs have threads
            self._channel.write(json.dumps({"event": event, "task": self.name, **content}) + "\n")
            self._channel.flush()


def run_task(folder: Path, environment: dict[str, str]) -> int:
    """Run this process's task; return its exit code."""
    faulthandler.enable()
    job = _read_job(folder)
    name, addresses = identify_task(job, environment)
    attempt, shared = int(environment.get("COURSE_ATTEMPT", 0)), folder / "shared"
    for path in (shared, folder / "results"):
        path.mkdir(exist_ok=True)
    if "COURSE_CHANNEL" in environment:
        channel, leave = _join_supervisor(int(environment["COURSE_CHANNEL"]))
    else:
        reports = folder / "reports" / f"attempt {attempt}"
        reports.mkdir(parents=True, exist_ok=True)
        if name in addresses:
            listen(int(addresses[name].rsplit(":", 1)[1])).close()  # the framework's own error names no remedy
        channel, leave = open(reports / f"{name}.jsonl", "a"), Rendezvous(name, addresses, job).leave
        environment["no_grpc_proxy"] = ",".join(address.rsplit(":", 1)[0] for address in addresses.values())
    task = Task(name, addresses, shared, attempt, channel)
    environment.update(job.task_environment(name, addresses))
    devices.quieten()
    done = _watch(job, folder, name, alone="COURSE_CHANNEL" not in environment)
    try:
        if name not in job.programs:
            _serve(task)
        result = job.program.load()(task, **job.arguments)
        _store(result, folder / "results" / f"{name}.pickle")
    except BaseException as error:
        text = _own_traceback(error, job)
        print(text, file=sys.stderr, flush=True)
        task._send("failed", error=type(error).__name__, message=str(error), traceback=text)
        return 1
    task._send("returned")
    done()
    leave()  # not while another task is in a collective: that would break it
    return 0


def _watch(job: Job, folder: Path, name: str, alone: bool) -> Callable[[], None]:
    """Let this task be seen while it stands still; without a supervisor it watches itself, unless it serves others."""
    if not job.hang_seconds:
        return lambda: None
    recorder.record(folder, name)
    if job.framework == "tensorflow" and job.needs_framework:
        import tensorflow  # noqa: F401  # what is recorded are its calls
    if alone and name in job.programs:
        return watch(folder, name, job.hang_seconds, end=True)
    keep_record(folder, name)
    return lambda: None


def _read_job(folder: Path) -> Job:
    try:
        return Job.from_json((folder / "job.json").read_text())
    except OSError as error:
        raise CourseError(
            f"{folder / 'job.json'} cannot be read on {socket.gethostname()} ({error.strerror}): "
            f"every machine must see this folder."
        ) from None


def _join_supervisor(descriptor: int):
    """Where reports go, and a call that waits until the supervisor lets this task leave."""
    channel, released = socket.socket(fileno=descriptor), threading.Event()
    channel.set_inheritable(False)  # what the program starts would keep it open
    if sys.platform == "linux":  # the kernel kills this task with its parent, also while it is paused
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_follow, args=(channel, released), daemon=True).start()
    return channel.makefile("w"), released.wait


def _follow(channel: socket.socket, released: threading.Event) -> None:
    """Wait until the supervisor lets this task leave; end at once when the supervisor is gone."""
    if not channel.recv(1):
        os.killpg(os.getpgid(0), signal.SIGKILL)
    released.set()


def _serve(task: Task) -> None:
    """Be a worker or a parameter server that a coordinator drives; never returns."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    options = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=max(4, task.workers + 1))  # fewer can deadlock
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=task.type, task_index=task.index, protocol="grpc", config=options
    )
    task.report(serving=1 + task.attempt)  # so that a second start differs from the first
    server.join()


def _store(result: object, path: Path) -> None:
    try:
        content = pickle.dumps(result)
    except Exception as error:  # pickle raises many types
        raise CourseError(
            f"the program's result cannot travel back ({error}); return numbers, arrays, lists and dicts."
        ) from None
    path.with_suffix(".part").write_bytes(content)
    path.with_suffix(".part").replace(path)


def _own_traceback(error: BaseException, job: Job) -> str:
    """From the program's first frame on: its author has no use for the launcher's frames."""
    frame = error.__traceback__
    while frame and frame.tb_frame.f_code.co_filename == __file__:
        frame = frame.tb_next
    if isinstance(error, CourseError) or frame is None:
        return f"{type(error).__name__}: {error}"
    return "".join(traceback.format_exception(type(error), error, frame)).rstrip()
