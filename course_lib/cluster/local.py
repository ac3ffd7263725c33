"""A cluster of real processes on this machine, driven from a notebook cell; taught in notebooks/03.

Needs Linux or macOS. Whatever becomes of this process, the supervisor that it
starts ends every task and leaves no process, port or folder behind.
"""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil

from course_lib.cluster.job import Job
from course_lib.errors import CourseError

GIB = 2**30
# A task that lost another one in the middle of a collective fails with one of these.
CONSEQUENCES = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError", "InternalError", "JaxRuntimeError", "XlaRuntimeError")


@dataclass(frozen=True)
class Report:
    """What a program told with `task.report(...)`."""

    task: str
    attempt: int
    values: Mapping[str, object]


@dataclass(frozen=True)
class Exit:
    """How one attempt at a task ended.

    code       its exit code; -9 for SIGKILL
    asked      True when `kill`, a restart or the end of the run ended it
    error      the exception's type, or ""
    message    the exception's message
    traceback  the program's own frames, or ""
    """

    task: str
    attempt: int
    code: int
    asked: bool
    error: str = ""
    message: str = ""
    traceback: str = ""

    @property
    def failed(self) -> bool:
        return self.code != 0 and not (self.asked and self.code == -signal.SIGKILL)

    def __str__(self) -> str:
        if self.error:
            return f"{self.task} failed: {self.error}: {self.message.splitlines()[0][:300] if self.message else ''}".rstrip(": ")
        if self.code < 0:
            by = "on request" if self.asked else "from outside; when memory runs out, the system does that"
            return f"{self.task} was ended by {signal.Signals(-self.code).name}" + (f" {by}" if self.code == -signal.SIGKILL else "")
        return f"{self.task} ended with exit code {self.code}" + (" before its program returned" if self.code else "")


class RunFailed(CourseError):
    """The run ended without its results; shows the failing task's own traceback above the one line.

    exits  how every task ended, in that order
    log    every task's lines
    """

    def __init__(self, message: str, cause: Exit | None, exits: Sequence[Exit], log: Mapping[str, str]):
        super().__init__(message)
        self.cause, self.exits, self.log = cause, tuple(exits), log

    def _render_traceback_(self) -> list[str]:
        shown = [f"{self.cause.task}:", self.cause.traceback, ""] if self.cause and self.cause.traceback else []
        return [*shown, *super()._render_traceback_()]


@dataclass(frozen=True, repr=False)
class Outcome:
    """What a run that went well left behind.

    results   task to what its program returned
    reports   in order of arrival
    log       task to the lines that it printed, stdout and stderr
    exits     how each attempt ended
    restarts  failures that the run recovered from
    """

    results: Mapping[str, object]
    reports: tuple[Report, ...]
    log: Mapping[str, str]
    exits: tuple[Exit, ...]
    restarts: int

    @property
    def result(self) -> object:
        """The result of the first task that runs the program."""
        return next(iter(self.results.values()))

    def __repr__(self) -> str:
        recovered = f", after {self.restarts} restarts" if self.restarts else ""
        return f"Outcome: {', '.join(self.results)} returned{recovered}"


def run(job: Job, *, folder: Path | None = None, ports: Sequence[int] = (), show: Callable[[str], None] | None = print) -> Outcome:
    """Start a job's tasks, wait for all programs to return, clean up.

    folder  keeps the logs, results and checkpoints there; a second run goes on from
            its checkpoints. None is a temporary folder
    ports   one per task; by default free ones
    show    gets each line that a task prints, with the task's name; None shows none
    Raises  RunFailed with the failing task's traceback; CourseError before anything starts
    """
    with start(job, folder=folder, ports=ports, show=show) as cluster:
        return cluster.outcome()


def start(job: Job, *, folder: Path | None = None, ports: Sequence[int] = (), show: Callable[[str], None] | None = print) -> "Cluster":
    """Start a job's tasks and return at once, to watch them, kill them, and wait for them; arguments as in `run`."""
    if os.name != "posix":
        raise CourseError("local clusters need Linux or macOS; on Windows open the course in WSL or in Colab.")
    if ports and len(ports) != len(job.tasks):
        raise CourseError(f"ports names {len(ports)} ports for {len(job.tasks)} tasks; name one each, or none.")
    wanted, free = len(job.tasks) * job.resources.memory_gib, psutil.virtual_memory().available / GIB
    if wanted > free:
        raise CourseError(
            f"{len(job.tasks)} tasks of {job.resources.memory_gib:g} GiB need {wanted:.1f} GiB and {free:.1f} GiB of "
            f"memory are free: use at most {int(free / job.resources.memory_gib)} tasks, or a smaller memory_gib."
        )
    return Cluster(job, folder, ports, show)


class Cluster:
    """A running job; use it in a `with` block, or `stop` it.

    Every wait ends with what it waits for, or raises when that can no longer
    come. An interrupt or an error in a wait stops the cluster.
    """

    def __init__(self, job: Job, folder: Path | None, ports: Sequence[int], show):
        self.job = job
        self._show = show or (lambda line: None)
        self._shown = 0
        self._folder = _prepare(job, folder)
        self._state = _State()
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._supervisor = subprocess.Popen(
            [sys.executable, "-m", "course_lib.cluster.supervisor", self._folder, "remove" if folder is None else "keep", *map(str, ports)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        threading.Thread(target=self._state.follow, args=(self._supervisor,), daemon=True).start()
        # Also when the last reference goes, and when Python ends.
        self.stop = weakref.finalize(self, _stop, self._supervisor, None if folder else self._folder)
        self._wait(lambda: self._state.addresses)

    @property
    def addresses(self) -> Mapping[str, str]:
        """Every task's name to its "host:port"."""
        return MappingProxyType(self._state.addresses)

    @property
    def pids(self) -> Mapping[str, int]:
        """Every task's process id, of its present attempt."""
        return MappingProxyType(self._state.pids)

    @property
    def reports(self) -> tuple[Report, ...]:
        return tuple(self._state.reports)

    @property
    def shared(self) -> Path:
        """The folder that programs see as `task.folder`."""
        return Path(self._folder) / "shared"

    def kill(self, task: str) -> None:
        """End a task with SIGKILL, as a lost machine would."""
        self._command("kill", task)

    def pause(self, task: str) -> None:
        """Stop a task's clock (SIGSTOP): it keeps its connections and answers nothing."""
        self._command("pause", task)

    def resume(self, task: str) -> None:
        """Let a paused task go on."""
        self._command("resume", task)

    def restart(self, task: str) -> None:
        """End a task if it still runs, and start its next attempt at the same address."""
        self._command("restart", task)

    def wait_report(self, task: str, **at_least) -> Report:
        """Wait until a task reports these values: numbers as large as here or larger, strings the same."""
        wanted = ", ".join(f"{name}={value!r}" for name, value in at_least.items()) or "anything"
        return self._wait(
            lambda: next((r for r in self._state.reports if r.task == task and _reaches(r.values, at_least)), None),
            task,
            f"report {wanted}",
        )

    def wait_line(self, task: str, text: str) -> str:
        """Wait until a task prints a line that contains a text; return the line."""
        return self._wait(
            lambda: next((line for name, _, line in self._state.lines if name == task and text in line), None),
            task,
            f"print {text!r}",
        )

    def wait_exit(self, task: str) -> Exit:
        """Wait until a task's process ends; say how. The same again for its next attempt."""
        return self._wait(lambda: self._state.unseen_exit(task), task, "end once more")

    def outcome(self) -> Outcome:
        """Wait until every program has returned; clean up; return what they left.

        Raises  RunFailed when a task failed or a limit was reached
        """
        restarts = self._wait(lambda: self._state.over and not self._state.over["reason"] and self._state.over)["restarts"]
        state = self._state
        results = Path(self._folder) / "results"
        values = {name: pickle.loads((results / f"{name}.pickle").read_bytes()) for name in self.job.programs}
        self.stop()
        return Outcome(values, tuple(state.reports), state.logs(self.job.tasks), tuple(state.exits), restarts)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Cluster: {', '.join(self._state.running(self.job.tasks)) or 'nothing'} running"

    def _command(self, command: str, task: str) -> None:
        if task not in self.job.tasks:
            raise CourseError(f"this job has the tasks {', '.join(self.job.tasks)}, and no {task!r}.")
        try:
            self._supervisor.stdin.write(json.dumps({"command": command, "task": task}) + "\n")
            self._supervisor.stdin.flush()
        except (OSError, ValueError):  # closed at the other end, or here
            raise CourseError(f"the cluster is no longer running, so {task} cannot {command}.") from None

    def _wait(self, found: Callable[[], object], task: str = "", what: str = ""):
        """Show what is printed until `found` finds something; raise when it no longer can."""
        state = self._state
        try:
            with state.changed:
                while not (answer := found()):
                    self._show_new_lines()
                    if state.over:
                        raise state.failure(self.job, task, what)
                    if task in state.ended and not self.job.restarts:
                        raise CourseError(f"{task} ended before it could {what}: {state.exits[-1]}.")
                    state.changed.wait()
                self._show_new_lines()
            return answer
        except BaseException:
            self.stop()
            raise

    def _show_new_lines(self) -> None:
        for task, stream, text in self._state.lines[self._shown :]:
            if stream == "out":
                self._show(f"{task} | {text}")
        self._shown = len(self._state.lines)


class _State:
    """What the supervisor has told so far; a thread writes it, waits read it."""

    def __init__(self):
        self.changed = threading.Condition()
        self.addresses: dict[str, str] = {}
        self.pids: dict[str, int] = {}
        self.lines: list[tuple[str, str, str]] = []
        self.reports: list[Report] = []
        self.errors: dict[tuple[str, int], dict] = {}
        self.exits: list[Exit] = []
        self.ended: set[str] = set()
        self.seen: dict[str, int] = {}
        self.over: dict | None = None

    def follow(self, supervisor: subprocess.Popen) -> None:
        """Take in events until the supervisor ends; runs in a thread of its own."""
        try:
            for line in supervisor.stdout:
                with self.changed:
                    event = json.loads(line)
                    getattr(self, f"_on_{event.pop('event')}")(**event)
                    self.changed.notify_all()
            said = supervisor.stderr.read().strip().splitlines() or ["killed"]
        finally:
            with self.changed:
                self.over = self.over or {"reason": f"the cluster's supervisor ended ({said[-1]}), and its tasks with it"}
                self.changed.notify_all()

    def _on_addresses(self, addresses):
        self.addresses = addresses

    def _on_started(self, task, pid, attempt):
        self.pids[task] = pid
        self.ended.discard(task)

    def _on_line(self, task, stream, text):
        self.lines.append((task, stream, text))

    def _on_report(self, task, attempt, values):
        self.reports.append(Report(task, attempt, values))

    def _on_failed(self, task, attempt, **error):
        self.errors[task, attempt] = error

    def _on_returned(self, task, attempt):
        pass  # the end of the run says it for all

    def _on_restarting(self, tasks, after):
        pass

    def _on_exited(self, task, code, attempt, asked):
        self.exits.append(Exit(task, attempt, code, asked, **self.errors.get((task, attempt), {})))
        self.ended.add(task)

    def _on_over(self, **over):
        self.over = over

    def unseen_exit(self, task: str) -> Exit | None:
        exits = [exit for exit in self.exits if exit.task == task]
        if len(exits) == self.seen.get(task, 0):
            return None
        self.seen[task] = self.seen.get(task, 0) + 1
        return exits[self.seen[task] - 1]

    def logs(self, tasks: Sequence[str]) -> dict[str, str]:
        return {task: "\n".join(text for name, _, text in self.lines if name == task) for task in tasks}

    def running(self, tasks: Sequence[str]) -> list[str]:
        return [task for task in tasks if task in self.pids and task not in self.ended and not self.over]

    def failure(self, job: Job, task: str, what: str) -> CourseError:
        """Why a wait cannot end well: the first failure that is not the consequence of another."""
        if not self.over["reason"]:
            return CourseError(f"the run ended well before {task} could {what}.")
        last_attempts = {exit.task: exit for exit in self.exits}
        failed = [exit for exit in self.exits if exit.failed and last_attempts[exit.task] is exit]
        cause = next((exit for exit in failed if exit.error not in CONSEQUENCES), failed[0] if failed else None)
        logs = self.logs(job.tasks)
        if "did not finish" in self.over["reason"] or cause is None:
            cause, message = None, f"{self.over['reason']}; {self._last_words(job)}"
        else:
            message = str(cause)
            if not cause.error and (log := logs[cause.task].strip()):
                message += f"; its last line: {log.splitlines()[-1][:200]}"
        if job.restarts:
            message += f" (after {self.over.get('restarts', 0)} of {job.restarts} restarts)"
        return RunFailed(message, cause, self.exits, logs)

    def _last_words(self, job: Job) -> str:
        last = {report.task: report.values for report in self.reports}
        said = (", ".join(f"{k}={v}" for k, v in last[name].items()) if name in last else "nothing" for name in job.programs)
        return "last reports: " + "; ".join(f"{name} {words}" for name, words in zip(job.programs, said))


def _reaches(values: Mapping[str, object], at_least: Mapping[str, object]) -> bool:
    return all(
        name in values and (values[name] == wanted if isinstance(wanted, str) else values[name] >= wanted)
        for name, wanted in at_least.items()
    )


def _prepare(job: Job, folder: Path | None) -> str:
    """A folder with the job in it, and no result of an earlier run."""
    path = Path(folder or tempfile.mkdtemp(prefix="course-cluster-")).resolve()
    path.mkdir(parents=True, exist_ok=True)
    for old in path.glob("results/*.pickle"):
        old.unlink()
    (path / "job.json").write_text(job.as_json())
    return str(path)


def _stop(supervisor: subprocess.Popen, folder: str | None) -> None:
    """Let the supervisor clean up, and wait for it; after it was killed itself, remove the folder."""
    try:
        supervisor.stdin.close()
    except OSError:
        pass
    supervisor.wait()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
