"""Results as CSV that opens right in a spreadsheet program, and runs nothing there. Needs nothing."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from course_lib.staff.grade.html_page import plain_line
from course_lib.staff.grade.results import Result, write_whole

FILE = "results.csv"
BYTE_ORDER_MARK = "\ufeff"  # without it Excel reads UTF-8 as the machine's old code page; Python: encoding="utf-8-sig"
QUESTIONS = tuple(f"q{number}" for number in range(1, 7))
_HEADERS = ("learner", "exercise", "points", "of", *QUESTIONS, "mistakes", "review", "problem", "file")

# A cell that starts so, with something to follow, is a formula: https://owasp.org/www-community/attacks/CSV_Injection.
# Where a comma is the decimal mark, Excel splits lines at semicolons, so a cell may start there too.
_FORMULA = re.compile("(^|; *)(?=[=+@\uff1d\uff0b\uff0d\uff20-].)")


def write(folder: Path, results: Iterable[Result]) -> None:
    """Write results.csv into the folder: a row per submission, by learner, exercise and file.

    A question's cell is empty where there is no verdict, points and of where nothing could be graded; review is a
    number of lines.
    Raises  CourseError, in one line, where it cannot be written
    """
    ordered = sorted(results, key=lambda result: (result.learner, result.exercise or "", result.file))
    write_whole(folder / FILE, BYTE_ORDER_MARK + as_csv([_HEADERS, *map(_row, ordered)]))


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


def _row(result: Result) -> list[object]:
    points = {verdict.question: verdict.points for verdict in result.verdicts}
    mistakes = [f"{verdict.question}: {verdict.mistake}" for verdict in result.verdicts if verdict.mistake]
    return [
        *(result.learner, result.exercise or ""),
        *(("", "") if result.problem else (result.points, result.of)),
        *(points.get(question, "") for question in QUESTIONS),
        *("; ".join(mistakes), len(result.review), result.problem, result.file),
    ]
