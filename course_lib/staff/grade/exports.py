"""Marks in the forms that Canvas, Moodle and Gradescope import. Needs nothing.

Canvas    canvas.csv, for Gradebook, Import. Columns as its importer demands (instructure/canvas-lms,
          lib/gradebook_importer.rb, and "How do I import grades in the Gradebook?" in its instructor
          guide). A student is found by ID, the number that Canvas puts into the names of downloaded
          submissions; without one, by SIS Login ID, then by name. An exercise's column goes to the
          assignment of the same name, or to a new one.
Moodle    worksheet_EXERCISE.csv, for the assignment's "Upload grading worksheet" (moodle/moodle,
          mod/assign/feedback/offline). The number in the name of a downloaded submission is a participant
          of that one assignment, which Moodle's gradebook does not know, so those learners go here.
          Tick "Allow updating records that have been modified more recently"; the columns' names are
          English, and the assignment's maximum grade must be the exercise's points or more.
          gradebook.csv has the other learners, for Grades, Import, CSV file (docs.moodle.org, "Grade
          import"): map its first column from "Identifier" to the field it holds, "Username", "ID number"
          or "Email address", and each exercise to a grade item.
Gradescope  LEARNER/EXERCISE/results.json, as an autograder leaves it
          (gradescope-autograders.readthedocs.io/en/latest/specs).

A submission that could not be graded has no mark in a gradebook: a person decides. Of several
submissions by one learner of one exercise, the last in the list counts.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.exercises.verdict import Verdict
from course_lib.staff.grade.owners import safe_name
from course_lib.staff.grade.results import Result, as_csv, plain_block, plain_line, write_whole

_NAME_AND_ID = re.compile(r"(.*\S)\s*\((\d{1,18})\)\s*")
_LOGIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*")  # what a spreadsheet program cannot take for a formula
_COME_AND_GO = ("worksheet_*.csv", "gradebook.csv", "*/*/results.json")  # files that depend on who is graded
_NO_GRADE = "-"  # Moodle's own word for it; an empty cell of a new grade item would be a grade

Marks = dict[str, dict[str, Result]]  # by learner, then by exercise


def write(folder: Path, form: str, results: Iterable[Result]) -> list[Path]:
    """Write the marks in one form, into a folder of its name within the folder; return the files.

    Files of an earlier call, of learners or exercises that are not in this one, are removed.

    form    "canvas", "moodle" or "gradescope"
    Raises  CourseError for another form, or in one line where a file cannot be written
    """
    if form not in FORMS:
        raise CourseError(f"marks cannot be exported as {form!r}; the forms are {', '.join(FORMS)}")
    marks: Marks = {}
    for result in results:
        marks.setdefault(result.learner, {})[result.exercise or "unknown"] = result
    texts = FORMS[form](dict(sorted(marks.items())))
    files = [folder / form / name for name in texts]
    for file, text in zip(files, texts.values()):
        write_whole(file, text)
    for old in {file for name in _COME_AND_GO for file in (folder / form).glob(name)} - {*files}:
        old.unlink(missing_ok=True)
    return files


def split_learner(learner: str) -> tuple[str, str]:
    """The name and the number of "doejane (12345)"; the number is "" where there is none."""
    match = _NAME_AND_ID.fullmatch(learner)
    return (match[1], match[2]) if match else (learner, "")


def _canvas(marks: Marks) -> dict[str, str]:
    exercises = _exercises(marks)
    rows = [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *exercises],
        ["Points Possible", "", "", "", "", *(_possible(exercise, marks) for exercise in exercises)],
    ]
    for learner, theirs in marks.items():
        name, number = split_learner(learner)
        login = name if not number and _LOGIN.fullmatch(name) else ""
        # Canvas takes every row whose name holds these words for the row of maximum points.
        name = plain_line(name).replace("Points Possible", "Points-Possible")
        rows.append([name, number, "", login, "", *(_mark(theirs.get(exercise), "") for exercise in exercises)])
    return {"canvas.csv": as_csv(rows)}


def _moodle(marks: Marks) -> dict[str, str]:
    participants = {learner: theirs for learner, theirs in marks.items() if split_learner(learner)[1]}
    # For a row without an identifier, Moodle's importer keeps the student of the row above.
    others = {who: theirs for who, theirs in marks.items() if who not in participants and plain_line(who)}
    texts = {}
    for exercise in _exercises(participants):
        rows = [["Identifier", "Full name", "Grade", "Maximum grade", "Last modified (grade)"]]
        for learner, theirs in participants.items():
            name, number = split_learner(learner)
            if exercise in theirs:
                mark, possible = _mark(theirs[exercise], ""), _possible(exercise, marks)
                rows.append([f"Participant {number}", name, mark, possible, ""])
        texts[f"worksheet_{exercise}.csv"] = as_csv(rows)
    if others:
        exercises = _exercises(others)
        rows = [["Identifier", *exercises]]
        for learner, theirs in others.items():
            rows.append([learner, *(_mark(theirs.get(exercise), _NO_GRADE) for exercise in exercises)])
        texts["gradebook.csv"] = as_csv(rows)
    return texts


def _gradescope(marks: Marks) -> dict[str, str]:
    return {
        f"{safe_name(learner)}/{safe_name(exercise)}/results.json": json.dumps(_autograded(result), indent=1) + "\n"
        for learner, theirs in marks.items()
        for exercise, result in theirs.items()
    }


def _autograded(result: Result) -> dict[str, object]:
    problem = [f"This notebook could not be graded: {result.problem}"] if result.problem else []
    notes = [f"Seen in the notebook: {note}" for note in result.notes]
    return {
        "score": float(result.points),
        "output": "\n".join(map(plain_line, [*problem, *notes])),
        "output_format": "text",  # the default would take a learner's text for HTML
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [_test(verdict) for verdict in result.verdicts],
    }


def _test(verdict: Verdict) -> dict[str, object]:
    return {
        "name": plain_line(f"{verdict.question}: {verdict.title}"),
        "number": verdict.question.removeprefix("q"),
        "score": float(verdict.points),
        "max_score": float(verdict.of),
        "status": "passed" if verdict.right else "failed",
        "output": plain_block(verdict.message),
        "visibility": "visible",
    }


def _exercises(marks: Marks) -> list[str]:
    return sorted({exercise for theirs in marks.values() for exercise, result in theirs.items() if result.exercise})


def _possible(exercise: str, marks: Marks) -> int | str:
    """Points of the exercise; empty when no submission of it could be graded."""
    return max((theirs[exercise].of for theirs in marks.values() if exercise in theirs), default=0) or ""


def _mark(result: Result | None, without: str) -> int | str:
    return without if result is None or result.problem else result.points


FORMS = {"canvas": _canvas, "moodle": _moodle, "gradescope": _gradescope}
