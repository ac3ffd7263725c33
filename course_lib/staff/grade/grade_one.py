"""Grade one submission: run its notebook in a sandbox, then judge what came back. Needs NumPy.

`run_submission` sends jobs to a sandbox and judges nothing; `judge_submission` runs nothing of the learner's. A
submission's seeds follow from the course's secret and its content alone: grading it again draws the same inputs, and
another submission meets other ones.
"""

import ast
import dataclasses
import functools
import hashlib
import hmac
from collections.abc import Callable, Sequence

from course_lib.exercises import judges
from course_lib.exercises.ask import WRITE_HERE
from course_lib.exercises.judge import judge
from course_lib.exercises.judges import published
from course_lib.exercises.notebook_cells import answer_notes, answering_cells, checked_questions, notebook_of
from course_lib.exercises.question import Question
from course_lib.exercises.verdict import Verdict
from course_lib.staff.grade.results import Result
from course_lib.staff.grade.review import suspicious, syntax_tree
from course_lib.staff.grade.sandbox import Limits, SandboxRun
from course_lib.staff.grade.sandbox_side.answers import Unreadable, unpack
from course_lib.staff.grade.submissions import Submission

MOST_ERRORS = 5  # of cells, in the notes
RUNS = 3  # of one notebook: the first, and two more without the cell that ended one
LEAST_COPIED = 2  # one short answer may be the same by chance
_COMPARED = 20_000  # characters of an answer; the course's own are a tenth of that


def run_submission(
    submission: Submission, run: Callable[[dict], SandboxRun], secret: bytes, limits: Limits
) -> list[SandboxRun]:
    """Run the notebook; if a cell or a check ends the run, run it again without that one, at most RUNS times.

    run      a sandbox's, which takes a job
    Returns  what came back, run by run; nothing for a submission with a problem
    """
    if submission.problem:
        return []
    seeds, runs = seeds_of(secret, submission), []
    job = _job(submission, seeds, limits)
    while True:
        runs.append(run(job))
        last = runs[-1].stopped_at
        unanswered = seeds.keys() - {str(record["question"]) for one in runs for record in _answers(one, seeds)}
        if last is None or not unanswered or len(runs) == RUNS:
            return runs
        key = "skip_questions" if isinstance(last, str) else "skip_cells"
        job = {**job, key: [*job[key], last]}


def judge_submission(
    submission: Submission, runs: Sequence[SandboxRun], secret: bytes, limits: Limits, graded_by: str
) -> Result:
    """The result of what run_submission returned.

    graded_by  what the marks depend on beside the notebook, for the result
    """
    sha256 = hashlib.sha256(submission.content).hexdigest()
    result = Result(submission.learner, submission.exercise, submission.file, sha256, graded_by, notes=submission.notes)
    if submission.problem:
        return dataclasses.replace(result, problem=submission.problem)
    cells = notebook_of(submission.content, submission.file)["cells"]
    questions, seeds = judges.questions(submission.exercise), seeds_of(secret, submission)
    errors = _errors(runs)
    endings = [_ended_by(run, limits) for run in runs if run.stopped_at is not None]
    reason = endings[-1] if endings else "the notebook ended before its cell"
    judged = _judged(runs, {question.name: question for question in questions}, seeds)
    answering = {place for question in questions for place in answering_cells(cells, question)}
    elsewhere = [line for number, line in sorted(errors.items()) if number - 1 not in answering]
    return dataclasses.replace(
        result,
        seeds=seeds,
        verdicts=tuple(
            dataclasses.replace(
                _verdict_or_error(judged.get(question.name), question, cells, errors)
                or _without_points(question, f"was not checked: {reason}"),
                notes=tuple(answer_notes(question, cells, errors)),
            )
            for question in questions
        ),
        notes=(*submission.notes, *elsewhere[:MOST_ERRORS], *endings),
        review=(*copied(submission.exercise, cells), *suspicious(cells)),
        output=said if isinstance(said := runs[-1].ending.get("output"), str) else "",
    )


def seeds_of(secret: bytes, submission: Submission) -> dict[str, int]:
    """A seed of 32 bits per question, from the secret, the exercise and the notebook's bytes."""
    content, seeds = hashlib.sha256(submission.content).digest(), {}
    for question in judges.questions(submission.exercise):
        drawn = hmac.digest(secret, f"{submission.exercise} {question.name} ".encode() + content, "sha256")
        seeds[question.name] = int.from_bytes(drawn[:4], "big")
    return seeds


def _job(submission: Submission, seeds: dict[str, int], limits: Limits) -> dict:
    cells = notebook_of(submission.content, submission.file)["cells"]
    questions = judges.questions(submission.exercise)
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


# What came back from the runs. It may be forged: every field is checked before it is used.


def _answers(run: SandboxRun, seeds: dict[str, int]) -> list[dict]:
    """The run's records of answers that belong to a question; each with what was replaced before, as "changed"."""
    found, changed = [], ""
    for record in run.records:
        if "answers" in record:
            name = str(record.get("question"))
            if name in seeds and record.get("seed") == seeds[name]:
                found.append({**record, "changed": changed})
            changed = ""
        elif "changed" in record:
            changed = changed or str(record["changed"])
    return found


def _judged(runs: Sequence[SandboxRun], questions: dict[str, Question], seeds: dict[str, int]) -> dict[str, Verdict]:
    """Question to verdict. A right one stays, and of the others the last counts."""
    verdicts: dict[str, Verdict] = {}
    for record in (record for run in runs for record in _answers(run, seeds)):
        name = str(record["question"])
        if name not in verdicts or not verdicts[name].right:
            verdicts[name] = _verdict(questions[name], record, seeds[name])
    return verdicts


def _verdict(question: Question, record: dict, seed: int) -> Verdict:
    packed, changed = record["answers"], record["changed"]
    if changed:
        problem = f"was not checked: the notebook replaces {changed}, which checks rely on; leave that as it is"
        return _without_points(question, problem[:300])
    try:
        answers = unpack(packed if isinstance(packed, str) else "")
    except Unreadable:
        return _without_points(question, "was not checked: its answers could not be read")
    if not isinstance(answers, dict):
        return _without_points(question, "was not checked: its answers have another form")
    return judge(question, answers, seed)


def _errors(runs: Sequence[SandboxRun]) -> dict[int, str]:
    """A line for each cell that raised, by its number, which is 1 for the first."""
    errors = {}
    for record in (record for run in runs for record in run.records):
        if "error" in record and "answers" not in record and type(record.get("at")) is int:
            message = "".join(char if char.isprintable() else " " for char in str(record["error"])[:350])
            errors[record["at"] + 1] = f"cell {record['at'] + 1} raised {message}"
    return errors


def _verdict_or_error(
    verdict: Verdict | None, question: Question, cells: list[dict], errors: dict[int, str]
) -> Verdict | None:
    """The verdict; where an answer is missing because its own cell failed, that error."""
    own = [errors.get(place + 1, "") for place in answering_cells(cells, question)]
    failed = next((error for error in own if error and WRITE_HERE not in error), None)
    if verdict and failed and verdict.is_missing:
        return _without_points(question, f"could not run: {failed}")
    return verdict


def _without_points(question: Question, problem: str) -> Verdict:
    return Verdict(question.name, question.title, False, 0, question.points, problem=problem)


def _ended_by(run: SandboxRun, limits: Limits) -> str:
    """Why a run ended early, as a learner reads it."""
    last, ending = run.stopped_at, run.ending
    place = f"the check of {last}" if isinstance(last, str) else f"cell {last + 1}"
    refused = next((record["refused"] for record in run.records if "refused" in record), None)
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


# A line for the examiner alone. It costs no point.


def copied(exercise: str, cells: list[dict]) -> tuple[str, ...]:
    """A line when the code of several answers is the published one, whatever its comments, docstrings and layout.

    cells    as notebook_cells.notebook_of gives them
    Returns  one line, or none
    """
    same = []
    for question in judges.questions(exercise):
        own = _code("\n".join(cells[place]["source"] for place in answering_cells(cells, question)))
        if own and own == _published(exercise)[question.name]:
            same.append(question.name)
    return (f"{', '.join(same)}: the code is the published solution's",) if len(same) >= LEAST_COPIED else ()


@functools.cache
def _published(exercise: str) -> dict[str, str]:
    return {name: _code(answer.source) for name, answer in published.answers(exercise).items()}


def _code(source: str) -> str:
    """The answer's syntax tree as text, without docstrings; empty when it has none."""
    if len(source) > _COMPARED:
        return ""
    try:
        tree = syntax_tree(source)
        for part in ast.walk(tree):
            if isinstance(part, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(part, clean=False) is not None:
                del part.body[0]
        return ast.dump(tree) if tree.body else ""
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
