"""What grading a submission gives: its file, written whole or not at all, and results.csv. Standard library.

A result holds no time and no path of this machine, so that regrading the same
notebook with the same secret writes the same bytes.
"""

import contextlib
import csv
import io
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.exercises.verdict import Verdict

CSV = "results.csv"
BYTE_ORDER_MARK = "\ufeff"  # without it Excel reads UTF-8 as the machine's old code page; Python: encoding="utf-8-sig"
QUESTIONS = tuple(f"q{number}" for number in range(1, 7))
_HEADERS = ("learner", "exercise", "points", "of", *QUESTIONS, "mistakes", "review", "problem", "file")

LONGEST_LINE = 600  # characters; the checks' own lines stay well below
LONGEST_BLOCK = 20_000
# Controls, halves of characters, and what reorders or hides the text around it; joiners stay, as names need them.
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
# A cell that starts so, with something to follow, is a formula: https://owasp.org/www-community/attacks/CSV_Injection.
# Where a comma is the decimal mark, Excel splits lines at semicolons, so a cell may start there too.
_FORMULA = re.compile("(^|; *)(?=[=+@\uff1d\uff0b\uff0d\uff20-].)")


@dataclass(frozen=True)
class Result:
    """One learner's notebook of one exercise, graded.

    learner   who handed it in
    exercise  such as "02_data_parallelism"; None when the notebook does not say
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


def write_csv(folder: Path, results: Iterable[Result]) -> None:
    """Write results.csv into the folder: a row per submission, by learner, exercise and file.

    A question's cell is empty where there is no verdict, points and of where nothing could be graded; review is a
    number of lines.
    Raises  CourseError, in one line, where it cannot be written
    """
    ordered = sorted(results, key=lambda result: (result.learner, result.exercise or "", result.file))
    write_whole(folder / CSV, BYTE_ORDER_MARK + as_csv([_HEADERS, *map(_row, ordered)]))


def _row(result: Result) -> list[object]:
    points = {verdict.question: verdict.points for verdict in result.verdicts}
    mistakes = [f"{verdict.question}: {verdict.mistake}" for verdict in result.verdicts if verdict.mistake]
    marks = ("", "") if result.problem else (result.points, result.of)
    by_question = [points.get(question, "") for question in QUESTIONS]
    seen = ("; ".join(mistakes), len(result.review), result.problem, result.file)
    return [result.learner, result.exercise or "", *marks, *by_question, *seen]


def as_csv(rows: Iterable[Sequence[object]]) -> str:
    """Rows of numbers and any texts, each text on one line and none a formula."""
    file = io.StringIO()
    for row in rows:
        csv.writer(file).writerow([cell if isinstance(cell, int) else safe_cell(str(cell)) for cell in row])
    return file.getvalue()


def safe_cell(text: str) -> str:
    """The text with an apostrophe where a spreadsheet program would begin a formula."""
    # A tab or a carriage return, which may begin one as well, is a space by now.
    return _FORMULA.sub(r"\1'", plain_line(text))


def plain_line(text: str, longest: int = LONGEST_LINE) -> str:
    """The text on one line, with each unseen character as a replacement mark, cut to so many characters."""
    line = " ".join(UNSEEN.sub("\ufffd", re.sub("[\r\n\u2028\u2029]", " ", text)).split())
    return line if len(line) <= longest else f"{line[:longest]} ..."


def plain_block(text: str) -> str:
    """The end of a longer text with its lines, each unseen character as a replacement mark."""
    kept = text if len(text) <= LONGEST_BLOCK else "... " + text[-LONGEST_BLOCK:]
    return UNSEEN.sub("\ufffd", re.sub("\r\n?", "\n", kept))


def counted(number: int, what: str) -> str:
    """The number with its noun: 1 point, 2 points."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def state(verdict: Verdict) -> str:
    """What became of a question, as the class that colours it: "right", "wrong", "blank" or "unchecked"."""
    if verdict.right:
        return "right"
    if verdict.is_blank:
        return "blank"
    return "unchecked" if verdict.problem.startswith("was not checked") else "wrong"


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, and its folder, so that a reader, or a kill, meets the old content or the new one and never a part.

    Raises  CourseError, in one line, where it cannot be written
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(fresh, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise CourseError(f"{path} cannot be written: {error.strerror or error}") from None
