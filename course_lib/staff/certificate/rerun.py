"""Run a claim's answers again, in the class grader's sandbox, on fresh inputs. Needs what `course grade` needs."""

import json
import secrets
from collections.abc import Iterator

from course_lib.exercises import judges
from course_lib.staff.certificate.record import Record, Refused, sha256_of, unpack
from course_lib.staff.grade import sandbox
from course_lib.staff.grade.grade_class import SECRET_BYTES, grade_all
from course_lib.staff.grade.results import Result
from course_lib.staff.grade.submissions import Submission


def require_whole(record: Record) -> dict[str, list[dict]]:
    """The claim's answers, when they are those that its digests name, for every exercise and all points.

    Raises  Refused otherwise
    """
    answers = unpack(record.answers)
    if (
        tuple(one.exercise for one in record.exercises) != tuple(judges.MODULES)
        or answers.keys() != judges.MODULES.keys()
    ):
        raise Refused(
            f"the certificate is not about this course's {len(judges.MODULES)} exercises: verify it with the version "
            "that made it"
        )
    for one in record.exercises:
        if one.sha256 != sha256_of(answers[one.exercise]):
            raise Refused(f"the answers of {one.exercise} are not those that the certificate names")
        if not one.points == one.of == sum(question.points for question in judges.questions(one.exercise)):
            raise Refused(f"the certificate claims {one.points} of {one.of} points for {one.exercise}, not all of them")
    return answers


def results(record: Record, jobs: int, enclosed: bool) -> Iterator[Result]:
    """Each exercise's result as it is done.

    jobs      exercises at a time
    enclosed  False runs the learner's code as this user, without a sandbox
    Raises    CourseError where there is no sandbox; Refused as require_whole does
    """
    sandbox.require(enclosed)
    answers = require_whole(record)
    submissions = [
        Submission(record.name, exercise, exercise, f"{exercise}.ipynb", _notebook(code))
        for exercise, code in answers.items()
    ]
    secret = secrets.token_bytes(SECRET_BYTES)  # shown to nobody, and kept nowhere
    for _, result in grade_all(submissions, secret, sandbox.Limits(), "", jobs, enclosed):
        yield result


def _notebook(code: list[dict]) -> bytes:
    made = {"cell_type": "code", "outputs": [], "execution_count": None}
    cells = [{**made, "metadata": {"tags": cell["tags"]}, "source": cell["source"]} for cell in code]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}).encode()
