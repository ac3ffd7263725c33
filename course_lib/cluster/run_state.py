"""What a cluster's supervisor has reported so far: one thread writes it, and waits read it."""

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path

from course_lib.cluster import processes
from course_lib.cluster.job import Job
from course_lib.cluster.outcome import Exit, RunFailed, TaskReport, first_cause
from course_lib.cluster.processes import Forked
from course_lib.errors import CourseError
from course_lib.hangs import HangReport


class RunState:
    """A run as its supervisor reports it, event by event.

    lines  (task, "out" or "err", text), in order of arrival
    alive  tasks whose process has not ended
    gone   tasks that ended, and that nothing but a `restart` brings back
    over   how the run ended: kind, reason, restarts; None while it runs
    closed the supervisor has ended
    """

    def __init__(self, job: Job, folder: str):
        self.job, self.folder = job, folder
        self.changed = threading.Condition()
        self.addresses: dict[str, str] = {}
        self.pids: dict[str, int] = {}
        self.lines: list[tuple[str, str, str]] = []
        self.reports: list[TaskReport] = []
        self.exits: list[Exit] = []
        self.alive: set[str] = set()
        self.gone: set[str] = set()
        self.returned: set[str] = set()
        self.refusals: list[str] = []  # one per command: why it was not obeyed, or ""
        self.hangs: list[HangReport] = []
        self.over: dict | None = None
        self.closed = False
        self._errors: dict[tuple[str, int], dict] = {}
        self._restarts = 0

    def follow(self, supervisor: subprocess.Popen | Forked) -> None:
        """Read events until the supervisor ends; runs in its own thread."""
        try:
            with supervisor.stdout as events:
                for line in events:
                    with self.changed:
                        self._take(json.loads(line))
                        self.changed.notify_all()
        finally:
            if not self.over:  # it was killed, and could not clean up
                processes.end_all(lambda: processes.marked(self.folder))
            with self.changed:
                self.closed = True
                self.over = self.over or {"kind": "lost", "reason": self._why_lost(), "restarts": self._restarts}
                self.changed.notify_all()

    def _why_lost(self) -> str:
        log = Path(self.folder) / "logs" / "supervisor.log"
        said = log.read_text(errors="replace").split("\n") if log.exists() else []
        last = next(filter(None, reversed(said)), "it was killed")
        return f"the cluster's supervisor ended ({last}), and its tasks with it; start the cluster again"

    def _take(self, event: dict) -> None:
        kind, task = event.pop("event"), event.get("task")
        match kind:
            case "addresses":
                self.addresses = event["addresses"]
            case "started":
                self.pids[task] = event["pid"]
                self.alive.add(task)
                self.gone.discard(task)
                self.returned.discard(task)
            case "line":
                self.lines.append((task, event["stream"], event["text"]))
            case "report":
                self.reports.append(TaskReport(**event))
            case "failed":
                self._errors[task, event.pop("attempt")] = event
            case "returned":
                self.returned.add(task)
            case "exited":
                self.alive.discard(task)
                self.exits.append(Exit(**{**self._errors.get((task, event["attempt"]), {}), **event}))
            case "restarting":
                self._restarts += 1
            case "hang":
                self.hangs.append(HangReport.from_json(event["report"]))
            case "gone":
                self.gone.add(task)
            case "obeyed":
                self.refusals.append(event["refusal"])
            case "over":
                self.over = event

    def running(self) -> list[str]:
        return [task for task in self.pids if task in self.alive and not self.over]

    def silent(self, task: str) -> bool:
        """A task that will report nothing more: its program returned, and nothing will run it again."""
        return task in self.gone or (task in self.returned and self._restarts >= self.job.restarts)

    def deserted(self) -> CourseError | None:
        """Why the run cannot end by itself: all programs returned or were killed, and some were killed."""
        killed = [task for task in self.job.programs if task in self.gone - self.returned]
        if killed and self.gone | self.returned >= set(self.job.programs):
            message = f"{', '.join(killed)} was killed, and no task is left to wait for; {self._last_words()}"
            return RunFailed(message, None, self.exits, self.logs())
        return None

    def never(self, task: str, what: str) -> CourseError:
        """Why a task that will do nothing more cannot do this."""
        ends = [str(exit) for exit in self.exits if exit.task == task]
        return CourseError(f"{task} cannot {what}: {ends[-1] if ends else 'its program has returned'}.")

    def logs(self) -> dict[str, str]:
        return {task: "\n".join(text for name, _, text in self.lines if name == task) for task in self.job.tasks}

    def failure(self, what: str) -> CourseError:
        """Why a wait for something cannot end well, in one line."""
        kind, reason = self.over["kind"], self.over["reason"]
        if kind == "returned":
            return CourseError(f"all programs returned, and {what} did not happen.")
        if kind in ("mistake", "lost"):
            return CourseError(reason)
        cause, logs = first_cause(self.exits) if kind == "failed" else None, self.logs()
        if kind == "hung":
            message = reason
        elif cause is None:
            message = f"{reason}; {self._last_words()}"
        else:
            message = str(cause)
            if not cause.error and (log := logs[cause.task].strip()):
                message += f"; its last line: {log.splitlines()[-1][:200]}"
        if kind == "failed" and self.hangs:
            message += f"; {self.hangs[-1].diagnosis}"
        if self.job.restarts:
            message += f" (after {self.over['restarts']} of {self.job.restarts} restarts)"
        return RunFailed(message, cause, self.exits, logs, self.hangs)

    def _last_words(self) -> str:
        last = {report.task: report.values for report in self.reports}
        said = {name: ", ".join(f"{k}={v}" for k, v in values.items()) for name, values in last.items()}
        return "last reports: " + "; ".join(f"{name} {said.get(name, 'nothing')}" for name in self.job.programs)


def first(items: Sequence, fits: Callable[[object], bool]) -> Callable[[], object]:
    """A search of a growing list that never looks at an item twice; None while nothing fits."""
    position = 0

    def find():
        nonlocal position
        while position < len(items):
            position += 1
            if fits(items[position - 1]):
                return items[position - 1]
        return None

    return find


def reaches(value: object, wanted: object) -> bool:
    """Whether a number is at least as large as wanted, or anything else equal to it."""
    both_numbers = isinstance(value, Real) and isinstance(wanted, Real)
    return value >= wanted if both_numbers else value == wanted
