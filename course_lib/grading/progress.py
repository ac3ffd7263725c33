"""A learner's progress: JSON lines that are only ever appended.

Needs nothing. Each event is one write to a file opened for appending, so several
notebooks can record at once; a torn line costs that event and no other. No version of
the course rewrites the file: lines that this one cannot use, such as those of an
exercise that is gone or of a newer version, stay as they are and count for nothing.
"""

import html
import json
import os
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from course_lib import tables
from course_lib.grading import bank
from course_lib.grading.verdict import Verdict

FILE = ".progress.jsonl"
_HEADERS = ("Exercise", "Points", "Checks", "Open questions")


@dataclass(frozen=True)
class ExerciseProgress:
    """One exercise: points earned of all, checks run, and what is open.

    next_open   the first open question; None when all are right
    open        every open question, in order
    notebook    the exercise's file, from the course's folder
    right_since  when the last of its questions was first right, as the file says it; None while one is open
    """

    exercise: str
    points: int
    of: int
    attempts: int
    next_open: str | None
    open: tuple[str, ...]
    notebook: str
    right_since: str | None


@dataclass(frozen=True, repr=False)
class Progress:
    """All exercises; prints as a table and the next step, and shows as one in a notebook."""

    exercises: tuple[ExerciseProgress, ...]

    @property
    def points(self) -> int:
        """Points earned in all exercises."""
        return sum(one.points for one in self.exercises)

    @property
    def of(self) -> int:
        """Points that could be earned."""
        return sum(one.of for one in self.exercises)

    @property
    def next_step(self) -> str:
        """The first open question and its notebook, in one line."""
        unfinished = [one for one in self.exercises if one.open]
        if not unfinished:
            return "Everything is right: `course certificate --name NAME` writes your certificate."
        # An exercise that was begun comes before one that was not.
        one = next((one for one in unfinished if one.attempts), unfinished[0])
        return f"Next: {one.next_open} in {one.notebook}"

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {**asdict(self), "points": self.points, "of": self.of, "next_step": self.next_step}

    def __repr__(self) -> str:
        width = max(len(one.exercise) for one in self.exercises)
        lines = [
            f"{one.exercise:<{width}}  {one.points} of {one.of} points, {_checks(one.attempts)}, {_left(one)}"
            for one in self.exercises
        ]
        return "\n".join([*lines, "", f"{self.points} of {self.of} points", self.next_step])

    def _repr_html_(self) -> str:
        rows = [(one.exercise, f"{one.points} of {one.of}", one.attempts, ", ".join(one.open) or "none") for one in self.exercises]
        caption = f"Your progress: {self.points} of {self.of} points"
        return f"{tables.as_html(_HEADERS, rows, caption)}<p>{html.escape(self.next_step)}</p>"


def record(file: Path, exercise: str, verdict: Verdict, seed: int) -> None:
    """Append one check to the file. Raises OSError where it cannot be written."""
    event = {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "exercise": exercise,
        "question": verdict.question,
        "right": verdict.right,
        "mistake": verdict.mistake,
        "seed": seed,
    }
    # The newline comes first: a line torn by a crash does not swallow the next one.
    line = ("\n" + json.dumps(event)).encode()
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        if os.write(descriptor, line) != len(line):
            raise OSError("the disk is full")
    finally:
        os.close(descriptor)


def events(file: Path) -> list[dict]:
    """The recorded checks, oldest first; none where there is no readable file."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [event for event in map(_event, lines) if event]


def read(folder: str | Path) -> Progress:
    """The progress recorded beside the notebooks in a folder."""
    checks = events(Path(folder) / FILE)
    return Progress(tuple(_exercise_progress(exercise, checks) for exercise in bank.MODULES))


def right_questions(exercise: str, checks: list[dict]) -> set[str]:
    """The questions answered right at least once."""
    return {check["question"] for check in checks if check["exercise"] == exercise and check["right"]}


def _exercise_progress(exercise: str, checks: list[dict]) -> ExerciseProgress:
    questions = bank.questions(exercise)
    right = right_questions(exercise, checks)
    left = tuple(question.name for question in questions if question.name not in right)
    return ExerciseProgress(
        exercise=exercise,
        points=sum(question.points for question in questions if question.name in right),
        of=sum(question.points for question in questions),
        attempts=sum(check["exercise"] == exercise for check in checks),
        next_open=left[0] if left else None,
        open=left,
        notebook=f"exercises/{exercise}.ipynb",
        right_since=None if left else _right_since(exercise, {question.name for question in questions}, checks),
    )


def _right_since(exercise: str, names: set[str], checks: list[dict]) -> str | None:
    """The time at which the last of the questions was first right; None where the file does not tell it."""
    waiting = set(names)
    for check in checks:
        if check["exercise"] == exercise and check["right"] and check["question"] in waiting:
            waiting.remove(check["question"])
            if not waiting:
                return check["time"] if isinstance(check.get("time"), str) else None
    return None


def _checks(attempts: int) -> str:
    return f"{attempts} check{'s' * (attempts != 1)}"


def _left(one: ExerciseProgress) -> str:
    return f"open: {', '.join(one.open)}" if one.open else "complete"


def _event(line: str) -> dict | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    wanted = {"exercise": str, "question": str, "right": bool}
    whole = isinstance(event, dict) and all(isinstance(event.get(key), kind) for key, kind in wanted.items())
    return event if whole else None
