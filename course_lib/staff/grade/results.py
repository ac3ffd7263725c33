"""What grading a submission gives, and its file: written whole or not at all. Needs nothing.

A result holds no time and no path of this machine, so that regrading the same
notebook with the same secret writes the same bytes.
"""

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.exercises.verdict import Verdict


@dataclass(frozen=True)
class Result:
    """One learner's notebook of one exercise, graded.

    learner   whose it is
    exercise  such as "02_data_parallelism"; None when the notebook does not tell
    file      the notebook as the examiner knows it, "week3.zip: ana/02.ipynb"
    sha256    of the notebook's bytes
    graded_by  what the marks depend on beside the notebook: secret, course, limits
    seeds     per question, the seed that its inputs were drawn from
    verdicts  one per question of the exercise, in order; empty with a problem
    notes     what was odd about the notebook, one line each; costs nothing by itself
    review    lines that an examiner should read; never shown to the learner
    output    the end of what the notebook printed
    problem   why nothing could be graded, in one line
    """

    learner: str
    exercise: str | None
    file: str
    sha256: str
    graded_by: str = ""
    seeds: dict[str, int] | None = None
    verdicts: tuple[Verdict, ...] = ()
    notes: tuple[str, ...] = ()
    review: tuple[str, ...] = ()
    output: str = ""
    problem: str = ""

    @property
    def points(self) -> int:
        """Points earned."""
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def of(self) -> int:
        """Points that could be earned; 0 with a problem."""
        return sum(verdict.of for verdict in self.verdicts)

    def as_json(self) -> str:
        """The file's text; from_json takes it back."""
        values = {**asdict(self), "points": self.points, "of": self.of}
        return json.dumps(values, indent=1, ensure_ascii=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Result":
        """The result that as_json wrote. Raises ValueError, KeyError or TypeError for another text."""
        values = json.loads(text)
        del values["points"], values["of"]
        lists = {name: tuple(values[name]) for name in ("notes", "review")}
        verdicts = tuple(map(Verdict.from_dict, values["verdicts"]))
        return cls(**{**values, **lists, "verdicts": verdicts})


def write(folder: Path, name: str, result: Result) -> None:
    """Store NAME.json in the folder, replacing it in one step."""
    write_whole(folder / f"{name}.json", result.as_json())


def read(folder: Path, name: str) -> Result | None:
    """The stored result; None where there is none, or a torn or foreign file."""
    try:
        return Result.from_json((folder / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_whole(path: Path, text: str) -> None:
    """Write a file, and its folder, so that a reader, or a kill, meets the old text or the new one and never a part.

    Raises  CourseError, in one line, where it cannot be written
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(fresh, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise CourseError(f"{path} cannot be written: {error.strerror or error}") from None
