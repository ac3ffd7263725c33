"""A learner's progress: JSON lines that are only ever appended.

Needs nothing. Each event is one write to a file opened for appending, so several
notebooks can record at once; a torn line costs that event and no other.
"""

import json
import os
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from course_lib.grading import bank
from course_lib.grading.verdict import Verdict

FILE = ".progress.jsonl"


@dataclass(frozen=True)
class ExerciseProgress:
    """One exercise: points earned of all, checks run, and the first open question."""

    exercise: str
    points: int
    of: int
    attempts: int
    next_open: str | None


@dataclass(frozen=True)
class Progress:
    """All exercises; prints as a table."""

    exercises: tuple[ExerciseProgress, ...]

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        width = max(len(one.exercise) for one in self.exercises)
        return "\n".join(
            f"{one.exercise:<{width}}  {one.points} of {one.of} points, {one.attempts} checks, "
            + (f"next: {one.next_open}" if one.next_open else "complete")
            for one in self.exercises
        )


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
    return ExerciseProgress(
        exercise=exercise,
        points=sum(question.points for question in questions if question.name in right),
        of=sum(question.points for question in questions),
        attempts=sum(check["exercise"] == exercise for check in checks),
        next_open=next((question.name for question in questions if question.name not in right), None),
    )


def _event(line: str) -> dict | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    wanted = {"exercise": str, "question": str, "right": bool}
    whole = isinstance(event, dict) and all(isinstance(event.get(key), kind) for key, kind in wanted.items())
    return event if whole else None
