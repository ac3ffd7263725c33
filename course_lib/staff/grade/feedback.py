"""One HTML page per learner: what is right, what is open, and what to do next. Needs nothing.

A page shows verdicts and what was seen in the notebook. It never shows what is meant
for the examiner (Result.review), a seed, or anything that the verdicts do not say.
"""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from course_lib.exercises.verdict import TargetResult, Verdict
from course_lib.staff.grade.html_page import block, bullets, counted, page, shown, state
from course_lib.staff.grade.owners import safe_name
from course_lib.staff.grade.results import Result, write_whole

FOLDER = "feedback"
WORDS = {"right": "right", "wrong": "not right yet", "blank": "still blank", "unchecked": "could not be checked"}
FOOTER = (
    "A question gives its points when all of its targets are met; your functions met inputs that were drawn for "
    "your submission. Cells are counted from the top of the notebook, text included. Does something here look wrong "
    "to you? Show this page to your examiner."
)
_WHOLE_RUN = "Restart the kernel, run all cells from top to bottom, save, and hand in again if your course allows it."


def write(folder: Path, results: Iterable[Result]) -> list[Path]:
    """Write feedback/LEARNER.html for every learner into the folder; return the files in the learners' order.

    Pages of an earlier call, of learners who are not in this one, are removed.
    Raises  CourseError, in one line, where one cannot be written
    """
    ordered = sorted(results, key=lambda result: (result.learner, result.exercise or "", result.file))
    files = []
    for learner, theirs in groupby(ordered, key=lambda result: result.learner):
        files.append(folder / FOLDER / f"{safe_name(learner)}.html")
        write_whole(files[-1], learner_page(learner, list(theirs)))
    for old in {*(folder / FOLDER).glob("*.html")} - {*files}:
        old.unlink(missing_ok=True)
    return files


def learner_page(learner: str, results: list[Result]) -> str:
    """The page's HTML, from all results of this learner."""
    points, of = sum(result.points for result in results), sum(result.of for result in results)
    count = counted(len(results), "notebook")
    lead = f"{points} of {_points(of)} in {count}." if of else f"No points yet, from {count}: here is how to get them."
    parts = [_contents(results)] if len(results) > 1 else []
    parts += [_exercise(result, number) for number, result in enumerate(results, 1)]
    return page(f"Feedback for {learner}", lead, parts, FOOTER)


def _contents(results: list[Result]) -> str:
    lines = "".join(f'<li><a href="#e{number}">{_heading(result)}</a></li>' for number, result in enumerate(results, 1))
    return f'<nav aria-label="Exercises on this page"><ul>{lines}</ul></nav>'


def _heading(result: Result) -> str:
    name = shown(result.exercise or "A notebook of no known exercise")
    return f"{name}: {result.points} of {_points(result.of)}" if result.of else f"{name}: not graded yet"


def _exercise(result: Result, number: int) -> str:
    parts = [f'<section aria-labelledby="e{number}"><h2 id="e{number}">{_heading(result)}</h2>']
    parts.append(f'<p class="quiet">Your file: {shown(result.file)}</p>')
    if result.problem:
        parts.append(f'<div class="card wrong"><p>This notebook could not be graded: {shown(result.problem)}</p></div>')
    parts += map(_question, result.verdicts)
    if result.notes:
        parts.append("<h3>What we saw in your notebook</h3><p>None of it costs points by itself.</p>")
        parts.append(bullets(result.notes))
    parts.append(f"<h3>What to do next</h3>{_next_steps(result)}")
    if result.output.strip():
        summary = "<summary>The end of what your notebook printed</summary>"
        parts.append(f"<details>{summary}{block(result.output)}</details>")
    return "\n".join([*parts, "</section>"])


def _question(verdict: Verdict) -> str:
    kind = state(verdict)
    parts = [f'<article class="card {kind}"><h3>{shown(verdict.question)}: {shown(verdict.title)}</h3>']
    parts.append(f'<p><b class="{kind}">{WORDS[kind].capitalize()}</b>, {verdict.points} of {_points(verdict.of)}</p>')
    happened = verdict.problem.partition(": ")[2] or ("" if kind == "blank" else verdict.problem)
    if happened:
        parts.append(f"<p>What happened: {shown(happened)}</p>")
    if verdict.targets:
        parts.append(f"<ul>{''.join(map(_target, verdict.targets))}</ul>")
    hints = zip(("What is going on", "Where to look"), verdict.hints)
    if verdict.hints:
        parts.append(f"<dl>{''.join(f'<dt>{label}</dt><dd>{shown(hint)}</dd>' for label, hint in hints)}</dl>")
    if verdict.notes:
        parts.append(f"<p>What we saw:</p>{bullets(verdict.notes)}")
    return "\n".join([*parts, "</article>"])


def _target(target: TargetResult) -> str:
    kind, word = ("right", "Met") if target.met else ("wrong", "Not met yet")
    detail = f"<br>{shown(target.detail)}" if target.detail else ""
    return f'<li><b class="{kind}">{word}</b>: {shown(target.goal)}{detail}</li>'


def _next_steps(result: Result) -> str:
    if result.problem:
        return f"<p>{_WHOLE_RUN} If it opens and runs on your side, tell your examiner.</p>"
    steps = [_step(verdict) for verdict in result.verdicts if not verdict.right]
    if not steps:
        return "<p>Nothing is open here. All questions are right.</p>"
    return f"<ol>{''.join(f'<li>{step}</li>' for step in [*steps, _WHOLE_RUN])}</ol>"


def _step(verdict: Verdict) -> str:
    name, kind = shown(verdict.question), state(verdict)
    missed = next((target.goal for target in verdict.targets if not target.met), None)
    if kind == "blank":
        return f"{name}: write your answer into its cell, then run its check; the check gives hints."
    if kind == "unchecked":
        return f"{name}: change what the line above names, so that this answer can be run and checked."
    if verdict.hints:
        return f"{name}: read “Where to look” above, change one thing, and run its check again."
    if missed:
        return f"{name}: start with the first target that is not met: {shown(missed)}."
    return f"{name}: start with the line above that says what happened; its check shows it to you as well."


def _points(count: int) -> str:
    return counted(count, "point")
