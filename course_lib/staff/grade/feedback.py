"""One HTML page per learner: what is right, what is open, and what to do next. Needs Jinja2.

A page shows verdicts and what was seen in the notebook. It never shows what is meant
for the examiner (Result.review), a seed, or anything that the verdicts do not say.
"""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from course_lib.staff.grade.owners import safe_name
from course_lib.staff.grade.results import Result, write_whole
from course_lib.staff.html_page import page

FOLDER = "feedback"


def write(folder: Path, results: Iterable[Result]) -> list[Path]:
    """Write feedback/LEARNER.html for every learner into the folder; return the files in the learners' order.

    Pages of an earlier call, of learners who are not in this one, are removed.
    Raises  CourseError, in one line, where one cannot be written
    """
    ordered = sorted(results, key=lambda result: (result.learner, result.exercise or "", result.file))
    files = []
    for learner, theirs in groupby(ordered, key=lambda result: result.learner):
        files.append(folder / page_of(learner))
        write_whole(files[-1], learner_page(learner, list(theirs)))
    for old in {*(folder / FOLDER).glob("*.html")} - {*files}:
        old.unlink(missing_ok=True)
    return files


def page_of(learner: str) -> str:
    """Where a learner's page lies in the folder."""
    return f"{FOLDER}/{safe_name(learner)}.html"


def learner_page(learner: str, results: list[Result]) -> str:
    """The page's HTML, from all results of this learner."""
    return page("feedback.html", learner=learner, results=results)
