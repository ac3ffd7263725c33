"""A cluster of real processes on this machine, driven from a notebook cell; taught in notebooks/03.

Needs Linux or macOS. However this process ends, the supervisor that it starts
ends every task and leaves no process, port or folder behind.
"""

import json
import os
import pickle
import re
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import psutil

from course_lib.cluster import limited_links
from course_lib.cluster.job import Job
from course_lib.cluster.outcome import Exit, Outcome, TaskReport
from course_lib.cluster.processes import Forked
from course_lib.cluster.run_state import RunState, first, reaches
from course_lib.cluster.start_supervisor import start_supervisor
from course_lib.errors import CourseError

GIB = 2**30


def run(
    job: Job, *, folder: Path | None = None, ports: Sequence[int] = (), show: Callable[[str], None] | None = print
) -> Outcome:
    """Start a job's tasks, wait for all programs to return, clean up.

    folder  keeps the logs, results and checkpoints there; a second run goes on from
            its checkpoints. None is a temporary folder
    ports   one per task; by default free ones
    show    gets each line that a task prints, with the task's name; None shows none
    Raises  RunFailed with the failing task's traceback; CourseError before anything starts
    """
    with start(job, folder=folder, ports=ports, show=show) as cluster:
        return cluster.outcome()


def start(
    job: Job, *, folder: Path | None = None, ports: Sequence[int] = (), show: Callable[[str], None] | None = print
) -> "LocalCluster":
    """Start a job's tasks and return at once, to state them, kill them, and wait for them; arguments as in `run`."""
    if os.name != "posix":
        raise CourseError("local clusters need Linux or macOS; on Windows open the course in WSL or in Colab.")
    if ports and (len(ports) != len(job.tasks) or not all(0 < port < 2**16 for port in ports)):
        raise CourseError(
            f"{len(job.tasks)} tasks need {len(job.tasks)} ports from 1 to 65535, not {list(ports)}: "
            f"name one per task, or leave ports out."
        )
    if job.link:
        limited_links.require(job.link)
    wanted, free = len(job.tasks) * job.resources.memory_gib, _free_memory_bytes() / GIB
    if wanted > free:
        most = int(free / job.resources.memory_gib)
        raise CourseError(
            f"{len(job.tasks)} tasks of {job.resources.memory_gib:g} GiB need {wanted:.1f} GiB and {free:.1f} GiB "
            f"of memory are free: use {f'at most {most} tasks, or ' if most else ''}a smaller memory_gib "
            f"if the tasks need less."
        )
    return LocalCluster(job, folder, ports, show)


class LocalCluster:
    """A running job; use it in a `with` block, or `stop` it.

    Every wait ends with what it waits for, or raises when that can no longer
    come. An interrupt or an error in a wait stops the cluster.
    """

    def __init__(self, job: Job, folder: Path | None, ports: Sequence[int], show: Callable[[str], None] | None):
        self.job = job
        self._show = show or (lambda line: None)
        self._shown = 0
        self._seen_exits: Counter[str] = Counter()
        self._commands = 0
        self._outcome: Outcome | None = None
        self._folder = str(Path(folder or tempfile.mkdtemp(prefix="course-cluster-")).resolve())
        temporary = None if folder else self._folder
        try:
            lock = _prepare(job, Path(self._folder))
            with lock:
                self._supervisor = start_supervisor(job, self._folder, bool(folder), ports, lock.fileno())
            # Also when the last reference goes, and when Python ends.
            self.stop = weakref.finalize(self, _stop, self._supervisor, temporary, os.getpid())
            self._state = RunState(job, self._folder)
            threading.Thread(target=self._state.follow, args=(self._supervisor,), daemon=True).start()
        except BaseException:  # an interrupt too; without its pipe the supervisor ends by itself
            if temporary:
                shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._wait(lambda: len(self._state.pids) == len(job.tasks) or None)

    @property
    def addresses(self) -> Mapping[str, str]:
        """Every task's name to its "host:port"."""
        return MappingProxyType(self._state.addresses)

    @property
    def pids(self) -> Mapping[str, int]:
        """Every task's process id, of its present attempt."""
        return MappingProxyType(self._state.pids)

    @property
    def reports(self) -> tuple[TaskReport, ...]:
        return tuple(self._state.reports)

    @property
    def exits(self) -> tuple[Exit, ...]:
        """How each finished attempt ended."""
        return tuple(self._state.exits)

    @property
    def shared(self) -> Path:
        """The folder that programs see as `task.folder`."""
        return Path(self._folder) / "shared"

    def kill(self, task: str) -> None:
        """End a task with SIGKILL, as when a machine is lost. A task that has ended stays ended."""
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

    def wait_report(self, task: str, **at_least) -> TaskReport:
        """Wait until a task, in any attempt, reports these values: numbers at least as large, anything else equal."""
        wanted = ", ".join(f"{name}={value!r}" for name, value in at_least.items()) or "anything"

        def fits(report: TaskReport) -> bool:
            values = report.values
            return report.task == task and all(
                name in values and reaches(values[name], at_least[name]) for name in at_least
            )

        return self._wait_for(task, f"report {wanted}", first(self._state.reports, fits), self._state.silent)

    def wait_line(self, task: str, text: str) -> str:
        """Wait until a task, in any attempt, prints a line that contains a text; return the line."""
        found = first(self._state.lines, lambda line: line[0] == task and text in line[2])
        return self._wait_for(task, f"print {text!r}", found, self._state.gone.__contains__)[2]

    def wait_exit(self, task: str) -> Exit:
        """Wait until a task's process ends; say how. Each call gives the end of one attempt, in order."""
        number = self._seen_exits[task]

        def found() -> Exit | None:
            return next((exit for exit in self._state.exits if (exit.task, exit.attempt) == (task, number)), None)

        ended = self._wait_for(task, "end once more", found, self._state.gone.__contains__)
        self._seen_exits[task] += 1
        return ended

    def outcome(self) -> Outcome:
        """Wait until every program has returned; clean up; return what they left.

        Raises  RunFailed when a task failed or a limit was reached
        """
        if self._outcome:
            return self._outcome
        state = self._state
        self._wait(lambda: state.over and state.over["kind"] == "returned" or None, state.deserted)
        try:
            results = {name: _read_result(Path(self._folder), name) for name in self.job.programs}
        finally:
            self.stop()
        parts = tuple(state.reports), state.logs(), tuple(state.exits), state.over["restarts"], tuple(state.hangs)
        self._outcome = Outcome(results, *parts)
        return self._outcome

    def __enter__(self) -> "LocalCluster":
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Cluster: {', '.join(self._state.running()) or 'nothing'} running"

    def _command(self, command: str, task: str) -> None:
        """Send a command to the supervisor and wait until it is done."""
        self._require(task)
        state = self._state
        self._commands += 1
        try:
            self._supervisor.stdin.write(json.dumps({"command": command, "task": task}) + "\n")
            self._supervisor.stdin.flush()
        except (OSError, ValueError):  # closed at the other end, or here
            raise CourseError(f"{task} cannot {command}: the cluster is no longer running.") from None
        with state.changed:
            state.changed.wait_for(lambda: len(state.refusals) == self._commands or state.closed)
        refusal = state.refusals[-1] if len(state.refusals) == self._commands else "the cluster is no longer running"
        if refusal:
            raise CourseError(f"{task} cannot {command}: {refusal}.")

    def _require(self, task: str) -> None:
        if task not in self.job.tasks:
            raise CourseError(f"this job has the tasks {', '.join(self.job.tasks)}, and no {task!r}.")

    def _wait_for(self, task: str, what: str, found: Callable, hopeless: Callable[[str], bool]):
        self._require(task)
        state = self._state
        return self._wait(found, lambda: state.never(task, what) if hopeless(task) else None, f"{task} {what}")

    def _wait(self, found: Callable, hopeless: Callable[[], CourseError | None] = lambda: None, what: str = "the end"):
        """Show what is printed until `found` gives something; raise when it no longer can."""
        state = self._state
        try:
            with state.changed:
                while (answer := found()) is None:
                    self._show_new_lines()
                    if state.over:
                        raise state.failure(what)
                    if reason := hopeless():
                        raise reason
                    state.changed.wait()
                self._show_new_lines()
            return answer
        except BaseException:
            self.stop()
            raise

    def _show_new_lines(self) -> None:
        fresh = self._state.lines[self._shown :]
        self._shown += len(fresh)
        for task, stream, text in fresh:
            if stream == "out":
                self._show(f"{task} | {text}")


def _free_memory_bytes() -> int:
    """Free memory of this machine, or of this process's container; a file cache counts as free."""
    free, group = psutil.virtual_memory().available, Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # no such file, or "max" in it
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
        free = min(free, limit - used + int(cached[1] if cached else 0))
    return free


def _prepare(job: Job, path: Path):
    """A folder with the job in it and no result of an earlier run; its lock, an open file.

    Raises  CourseError when another cluster uses the folder
    """
    import fcntl  # not on Windows, where this module must import to say so

    for folder in (path, path / "logs", path / "results"):
        folder.mkdir(parents=True, exist_ok=True)
    lock = open(path / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise CourseError(f"another cluster runs in {path}: stop it first, or give this one another folder.") from None
    for old in path.glob("results/*.pickle"):
        old.unlink()
    (path / "job.json").write_text(job.as_json())
    return lock


def _read_result(folder: Path, task: str) -> object:
    try:
        return pickle.loads((folder / "results" / f"{task}.pickle").read_bytes())
    except Exception as error:  # unpickling runs the result's own code
        raise CourseError(
            f"the result of {task} cannot be read here ({type(error).__name__}: {error}); return plain values."
        ) from None


def _stop(supervisor: subprocess.Popen | Forked, folder: str | None, owner: int) -> None:
    """Let the supervisor clean up, and wait for it; after it was killed itself, remove the folder."""
    if os.getpid() != owner:
        return  # a fork of the process that owns the cluster ends, or collects garbage
    with suppress(OSError, ValueError):  # it has ended
        supervisor.stdin.write(json.dumps({"command": "stop"}) + "\n")
        supervisor.stdin.flush()
    with suppress(OSError):
        supervisor.stdin.close()
    supervisor.wait()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
