"""A learner's progress: points of all exercises, what is open, and the next step. Standard library only."""

import html
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from course_lib.exercises import journal, judges
from course_lib.table import Table

_HEADERS = ("Exercise", "Points", "Checks", "Open questions")


@dataclass(frozen=True)
class ExerciseProgress:
    """One exercise: points earned of all, checks run, and what is open.

    next_open   the first open question; None when all are right
    open        every open question, in order
    notebook    the exercise's file, from the course's folder
    right_since  when the last of its questions was first right, as the file says; None while one is open
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
        return f"{self._table()}\n\n{self.points} of {self.of} points\n{self.next_step}"

    def _repr_html_(self) -> str:
        """The table, and the next step as a link that leads there from lessons and exercises."""
        step = re.sub(r"exercises/\S+\.ipynb", r'<a href="../\g<0>">\g<0></a>', html.escape(self.next_step))
        return f"{self._table(f'Your progress: {self.points} of {self.of} points')._repr_html_()}<p>{step}</p>"

    def _table(self, caption: str = "") -> Table:
        rows = [
            (one.exercise, f"{one.points} of {one.of}", one.attempts, ", ".join(one.open) or "none")
            for one in self.exercises
        ]
        return Table(_HEADERS, rows, caption, left=(0, 3))


def read(folder: str | Path) -> Progress:
    """The progress recorded beside the notebooks in a folder."""
    checks = journal.events(Path(folder) / journal.FILE)
    return Progress(tuple(_exercise_progress(exercise, checks) for exercise in judges.MODULES))


def _exercise_progress(exercise: str, checks: list[dict]) -> ExerciseProgress:
    questions = judges.questions(exercise)
    right = journal.right_questions(exercise, checks)
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
    """The time at which the last of the questions was first right; None where the file does not say."""
    waiting = set(names)
    for check in checks:
        if check["exercise"] == exercise and check["right"] and check["question"] in waiting:
            waiting.remove(check["question"])
            if not waiting:
                return check["time"] if isinstance(check.get("time"), str) else None
    return None
