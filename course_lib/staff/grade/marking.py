"""From a notebook to jobs for the sandbox, and from what it told to a result. Needs NumPy; judges, and runs nothing.

The seeds of a submission follow from the course's secret and its content alone: grading it again draws the same
inputs, and another submission meets others.
"""

import dataclasses
import hashlib
import hmac
from collections.abc import Generator

from course_lib.exercises import judges
from course_lib.exercises.ask import WRITE_HERE
from course_lib.exercises.judge import judge
from course_lib.exercises.notebook_cells import answer_notes, answering_cells, checked_questions, notebook_of
from course_lib.exercises.question import Question
from course_lib.exercises.verdict import NO_ANSWER, Verdict
from course_lib.staff.grade.copied_answers import copied
from course_lib.staff.grade.limits import Limits
from course_lib.staff.grade.results import Result
from course_lib.staff.grade.review import suspicious
from course_lib.staff.grade.sandbox_process import Told
from course_lib.staff.grade.sandbox_side.answers import Unreadable, unpack
from course_lib.staff.grade.submissions import Submission

MOST_ERRORS = 5  # of cells, told in the notes
RUNS = 3  # of one notebook: the first, and two more without the cell that ended one


def seeds_of(secret: bytes, submission: Submission) -> dict[str, int]:
    """A seed of 32 bits per question, from the secret, the exercise and the notebook's bytes."""
    content = hashlib.sha256(submission.content).digest()
    return {
        question.name: int.from_bytes(
            hmac.digest(secret, f"{submission.exercise} {question.name} ".encode() + content, "sha256")[:4], "big"
        )
        for question in judges.questions(submission.exercise)
    }


def grading(submission: Submission, secret: bytes, limits: Limits, graded_by: str) -> Generator[dict, Told, Result]:
    """Grade one submission: yields jobs for a sandbox, takes what each told, returns the result."""
    sha256 = hashlib.sha256(submission.content).hexdigest()
    result = Result(submission.learner, submission.exercise, submission.file, sha256, graded_by, notes=submission.notes)
    if submission.problem:
        return dataclasses.replace(result, problem=submission.problem)
    cells = notebook_of(submission.content, submission.file)["cells"]
    questions, seeds = judges.questions(submission.exercise), seeds_of(secret, submission)
    job = _job(cells, questions, seeds, limits)
    marks, endings = _Marks(questions, seeds), []
    for _ in range(RUNS):
        told = yield job
        marks.take(told)
        if marks.is_whole or (last := told.ending.get("last")) is None:
            break
        endings.append(_ended_by(told, limits))
        if not marks.open_questions:
            break
        key = "skip_questions" if isinstance(last, str) else "skip_cells"
        job = {**job, key: [*job[key], last]}
    return dataclasses.replace(
        result,
        seeds=seeds,
        verdicts=marks.verdicts(cells, endings),
        notes=(*submission.notes, *marks.errors_beside(job["answering"]), *endings),
        review=(*dict.fromkeys(marks.review), *copied(submission.exercise, cells), *suspicious(cells)),
        output=told.ending.get("output", ""),
    )


def _job(cells: list[dict], questions: tuple[Question, ...], seeds: dict[str, int], limits: Limits) -> dict:
    return {
        "cells": [cell["source"] if cell["cell_type"] == "code" else None for cell in cells],
        "answering": [answering_cells(cells, question) for question in questions],
        "checking": [
            [place for place, cell in enumerate(cells) if question.name in checked_questions(cell)]
            for question in questions
        ],
        "questions": [
            {
                "name": question.name,
                "asks_for": question.asks_for,
                "module": question.probe.__module__,
                "probe": question.probe.__name__,
                "seed": seeds[question.name],
            }
            for question in questions
        ],
        "skip_cells": [],
        "skip_questions": [],
        **dataclasses.asdict(limits),
    }


class _Marks:
    """The verdicts so far; a right one stays, and of the others the last counts."""

    def __init__(self, questions: tuple[Question, ...], seeds: dict[str, int]) -> None:
        self._questions, self._seeds = {question.name: question for question in questions}, seeds
        self._verdicts: dict[str, Verdict] = {}
        self._errors: dict[int, str] = {}
        self.review: list[str] = []
        self.is_whole = False

    @property
    def open_questions(self) -> list[str]:
        return [name for name in self._questions if name not in self._verdicts]

    def take(self, told: Told) -> None:
        """Judge every record of answers; a change seen while a probe ran counts against that probe."""
        changed, self.is_whole = "", False
        for record in told.records:
            if "answers" in record:
                self._judge(record, changed or record.get("changed"))
                changed = ""
            elif "changed" in record:
                changed = changed or str(record["changed"])
            elif "error" in record and type(record.get("at")) is int:
                number = record["at"] + 1
                said = "".join(char if char.isprintable() else " " for char in str(record["error"])[:350])
                self._errors[number] = f"cell {number} raised {said}"
            elif record == {"end": True}:
                self.is_whole = True

    def _judge(self, record: dict, changed: object) -> None:
        question = self._questions.get(str(record.get("question")))
        if question is None or record.get("seed") != self._seeds[question.name]:
            return
        if (known := self._verdicts.get(question.name)) and known.right:
            return
        if record.get("threads"):
            self.review.append(f"{question.name} was checked while threads of the notebook ran")
        self._verdicts[question.name] = self._verdict(question, record["answers"], changed)

    def _verdict(self, question: Question, packed: object, changed: object) -> Verdict:
        if changed:
            problem = f"was not checked: the notebook replaces {changed}, which checks rely on; leave that as it is"
            return _without_points(question, problem[:300])
        try:
            answers = unpack(packed if isinstance(packed, str) else "")
        except Unreadable:
            return _without_points(question, "was not checked: its answers could not be read")
        if not isinstance(answers, dict):
            return _without_points(question, "was not checked: its answers have another form")
        return judge(question, answers, self._seeds[question.name])

    def errors_beside(self, answering: list[list[int]]) -> list[str]:
        """What cells raised that answer no question; those of the others stand beside their verdict."""
        answers = {place + 1 for places in answering for place in places}
        return [line for number, line in sorted(self._errors.items()) if number not in answers][:MOST_ERRORS]

    def verdicts(self, cells: list[dict], endings: list[str]) -> tuple[Verdict, ...]:
        """One per question, with what was odd about the notebook; unanswered ones say what ended the run."""
        return tuple(
            dataclasses.replace(
                self._verdict_or_error(question, cells) or _without_points(question, _unchecked(endings)),
                notes=tuple(answer_notes(question, cells, self._errors)),
            )
            for question in self._questions.values()
        )

    def _verdict_or_error(self, question: Question, cells: list[dict]) -> Verdict | None:
        """The verdict; where an answer is missing because its own cell failed, that error."""
        verdict = self._verdicts.get(question.name)
        errors = [self._errors.get(place + 1, "") for place in answering_cells(cells, question)]
        failed = next((error for error in errors if error and WRITE_HERE not in error), None)
        if verdict and failed and verdict.problem.startswith(NO_ANSWER):
            return _without_points(question, f"could not run: {failed}")
        return verdict


def _unchecked(endings: list[str]) -> str:
    return f"was not checked: {endings[-1] if endings else 'the notebook ended before its cell'}"


def _without_points(question: Question, problem: str) -> Verdict:
    return Verdict(question.name, question.title, False, 0, question.points, problem=problem)


def _ended_by(told: Told, limits: Limits) -> str:
    """Why a run came to no end, as a learner reads it."""
    last, ending = told.ending["last"], told.ending
    place = f"the check of {last}" if isinstance(last, str) else f"cell {last + 1}"
    refused = next((record["refused"] for record in told.records if "refused" in record), None)
    if refused:
        return f"{place} was stopped: it reaches for {refused}, which belongs to the grader"[:300]
    if ending.get("limit") == "a cell":
        return f"{place} ran for more than {limits.cell_seconds:g} s, did not let itself be interrupted, and was killed"
    if ending.get("limit") == "in all":
        return f"the notebook ran for more than {limits.seconds:g} s, and was killed in {place}"
    if ending.get("limit"):
        return f"{place} sent more than can be taken, and was killed"
    if ending.get("memory"):
        return f"{place} took more than {limits.memory_gib:g} GiB of memory, and was killed"
    code = ending.get("exit")
    how = f"signal {-code}" if isinstance(code, int) and code < 0 else f"exit code {code}"
    return f"{place} ended the notebook's process ({how})"
