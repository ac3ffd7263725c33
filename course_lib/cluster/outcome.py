"""What a run leaves: reports, exits and results, or why it failed. Standard library only; taught in notebooks/03."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course_lib.errors import CourseError, telling_line
from course_lib.hangs import HangReport

# A task that lost another one in the middle of a collective fails with one of these.
CONSEQUENCES = (
    "UnavailableError",
    "AbortedError",
    "CancelledError",
    "DeadlineExceededError",
    "InternalError",
    "JaxRuntimeError",
    "XlaRuntimeError",
)


@dataclass(frozen=True)
class TaskReport:
    """What a program sent with `task.report(...)`."""

    task: str
    attempt: int
    values: Mapping[str, object]


@dataclass(frozen=True)
class Exit:
    """How one attempt at a task ended.

    code       its exit code; -9 for SIGKILL
    asked      True when `kill`, a restart or the end of the run ended it
    returned   True when its program had returned before
    error      the exception's type, or ""
    message    the exception's message
    traceback  the program's own frames, or ""
    """

    task: str
    attempt: int
    code: int
    asked: bool
    returned: bool = False
    error: str = ""
    message: str = ""
    traceback: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.error) or not (self.returned or self.asked and self.code == -signal.SIGKILL)

    def __str__(self) -> str:
        if self.error:
            return f"{self.task} failed: {self.error}: {telling_line(self.message)[:300]}".rstrip(": ")
        if self.code == -signal.SIGKILL:
            by = "on request" if self.asked else "from outside; when memory runs out, the system does that"
            return f"{self.task} was ended by SIGKILL {by}"
        how = f"signal {-self.code} ({signal.strsignal(-self.code)})" if self.code < 0 else f"exit code {self.code}"
        return f"{self.task} ended with {how}" + ("" if self.returned else " before its program returned")


class RunFailed(CourseError):
    """The run ended without its results; shows the failing task's own traceback above the one line.

    cause  how the task that failed first ended, or None when none failed
    exits  how every task ended, in that order
    log    every task's lines
    hangs  a report for each time that the job stood still
    """

    def __init__(
        self,
        message: str,
        cause: Exit | None,
        exits: Sequence[Exit],
        log: Mapping[str, str],
        hangs: Sequence[HangReport] = (),
    ):
        super().__init__(message)
        self.cause, self.exits, self.log, self.hangs = cause, tuple(exits), log, tuple(hangs)

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
    hangs     a report for each time that the job stood still
    """

    results: Mapping[str, object]
    reports: tuple[TaskReport, ...]
    log: Mapping[str, str]
    exits: tuple[Exit, ...]
    restarts: int
    hangs: tuple[HangReport, ...] = ()

    @property
    def result(self) -> object:
        """The result of the first task that runs the program."""
        return next(iter(self.results.values()))

    def __repr__(self) -> str:
        recovered = f", after {self.restarts} restarts" if self.restarts else ""
        return f"Outcome: {', '.join(self.results)} returned{recovered}"


def first_cause(exits: Sequence[Exit]) -> Exit | None:
    """The first failure, of the last attempts, that is not the consequence of another."""
    last_attempts = {exit.task: exit.attempt for exit in exits}
    failed = [exit for exit in exits if exit.failed and exit.attempt == last_attempts[exit.task]]
    return next((exit for exit in failed if exit.error not in CONSEQUENCES), failed[0] if failed else None)
