"""The class at a glance, for the examiner: summary.json, and summary.html that shows the same figures. Needs nothing.

It holds review lines, so it is not for learners. The same results in any order give the same bytes.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from course_lib.exercises.verdict import Verdict
from course_lib.staff.grade.html_page import bullets, page, shown, state, table
from course_lib.staff.grade.results import Result, write_whole

STATES = {"right": "right", "wrong": "wrong", "blank": "blank", "unchecked": "not checked"}
_BAR = "A bar holds right, wrong, blank and not checked, from left to right."
GAP_COUNT, GAP_SHARE = 3, 0.1  # so many wrong answers that fit no known mistake, and this share: the bank has a gap
_OF_NOTHING = hashlib.sha256(b"").hexdigest()  # what could not be read
FOOTER = (
    "Right, wrong, blank and not checked count notebooks that could be graded. This page holds notes about learners: "
    "it is for examiners only."
)


def write(folder: Path, results: Iterable[Result]) -> None:
    """Write summary.json and summary.html into the folder.

    Raises  CourseError, in one line, where one cannot be written
    """
    found = figures(results)
    write_whole(folder / "summary.json", json.dumps(found, indent=1, ensure_ascii=True) + "\n")
    write_whole(folder / "summary.html", as_html(found))


def figures(results: Iterable[Result]) -> dict[str, object]:
    """All figures as plain values for JSON; counts are of submissions, and shares are of 1."""
    ordered = sorted(results, key=lambda result: (result.exercise or "", result.learner, result.file))
    names = sorted({result.exercise for result in ordered if result.exercise})
    exercises = [_exercise(name, [result for result in ordered if result.exercise == name]) for name in names]
    asked = [(exercise["exercise"], question) for exercise in exercises for question in exercise["questions"]]
    mistakes = [
        {"exercise": name, "question": question["question"], **mistake}
        for name, question in asked
        for mistake in question["mistakes"]
    ]
    return {
        "submissions": len(ordered),
        "learners": len({result.learner for result in ordered}),
        "problems": sum(bool(result.problem) for result in ordered),
        "exercises": exercises,
        "mistakes": sorted(mistakes, key=lambda mistake: -mistake["count"]),
        "bank_gaps": [
            {"exercise": name, "question": question["question"], "unrecognised": question["unrecognised"]}
            for name, question in asked
            if question["unrecognised"] >= max(GAP_COUNT, GAP_SHARE * sum(question[kind] for kind in STATES))
        ],
        "look_at": [
            {
                **_learner_and_file(result),
                "exercise": result.exercise,
                "problem": result.problem,
                "review": list(result.review),
            }
            for result in ordered
            if result.problem or result.review
        ],
        "identical": _identical(ordered),
    }


def _exercise(name: str, results: Sequence[Result]) -> dict[str, object]:
    graded = [result for result in results if not result.problem]
    verdicts: dict[str, list[Verdict]] = {}
    for result in graded:
        for verdict in result.verdicts:
            verdicts.setdefault(verdict.question, []).append(verdict)
    return {
        "exercise": name,
        "submissions": len(results),
        "problems": len(results) - len(graded),
        "of": max((result.of for result in graded), default=0),
        "mean_points": _mean([result.points for result in graded]),
        "questions": [_question(verdicts[name]) for name in sorted(verdicts, key=lambda name: (len(name), name))],
    }


def _question(verdicts: Sequence[Verdict]) -> dict[str, object]:
    states = Counter(map(state, verdicts))
    named = Counter(verdict.mistake for verdict in verdicts if verdict.mistake)
    meanings = {verdict.mistake: verdict.hints[0] for verdict in verdicts if verdict.mistake and verdict.hints}
    return {
        "question": verdicts[0].question,
        "title": verdicts[0].title,
        "of": verdicts[0].of,
        **{kind: states[kind] for kind in STATES},
        "right_share": states["right"] / len(verdicts),
        "mean_points": _mean([verdict.points for verdict in verdicts]),
        "mistakes": [
            {"mistake": name, "count": count, "meaning": meanings.get(name, "")}
            for name, count in sorted(named.items(), key=lambda item: (-item[1], item[0]))
        ],
        "unrecognised": sum(state(verdict) == "wrong" and not verdict.mistake for verdict in verdicts),
    }


def _identical(results: Sequence[Result]) -> list[dict[str, object]]:
    """Notebooks that are the same to the byte and were handed in by different learners."""
    same: dict[str, list[Result]] = {}
    for result in results:
        same.setdefault(result.sha256, []).append(result)
    return [
        {
            "sha256": sha256,
            "notebooks": [{**_learner_and_file(result), "points": result.points, "of": result.of} for result in theirs],
        }
        for sha256, theirs in same.items()
        if sha256 not in ("", _OF_NOTHING) and len({result.learner for result in theirs}) > 1
    ]


def _learner_and_file(result: Result) -> dict[str, str]:
    return {"learner": result.learner, "file": result.file}


def _mean(points: Sequence[int]) -> float | None:
    return round(sum(points) / len(points), 3) if points else None


def as_html(found: dict) -> str:
    """The page of what figures gives."""
    counts = [f"{found[name]:,} {name if found[name] != 1 else name[:-1]}" for name in ("submissions", "learners")]
    lead = f"{' of '.join(counts)}. {found['problems']:,} could not be graded, {len(found['look_at']):,} need a look."
    parts = [_exercise_part(exercise) for exercise in found["exercises"]]
    parts += [_mistakes_part(found["mistakes"]), _gaps_part(found["bank_gaps"])]
    parts += [_look_part(found["look_at"]), _identical_part(found["identical"])]
    return page("Summary for the examiner", lead, parts, FOOTER)


def _exercise_part(exercise: dict) -> str:
    graded = exercise["submissions"] - exercise["problems"]
    words = f"{graded} of {exercise['submissions']} submissions graded"
    if graded:
        words += f"; on average {exercise['mean_points']:.2f} of {exercise['of']} points"
    headers = ("question", "right", "share", *list(STATES.values())[1:], "mean points")
    rows = [_question_row(question) for question in exercise["questions"]]
    answers = table(f"Answers to {exercise['exercise']}", headers, rows, numbers=range(1, 7))
    lead = f"<p>{words}. {_BAR if rows else ''}</p>"
    return f"<section><h2>{shown(exercise['exercise'])}</h2>{lead}{answers if rows else ''}</section>"


def _question_row(question: dict) -> list[str]:
    return [
        f"{shown(question['question'])}: {shown(question['title'])}",
        str(question["right"]),
        f"{question['right_share']:.0%}{_bar(question)}",
        *(str(question[kind]) for kind in list(STATES)[1:]),
        f"{question['mean_points']:.2f} of {question['of']}",
    ]


def _bar(question: dict) -> str:
    """The row's counts as one bar; the cells beside it say the same in figures."""
    total, start, pieces = sum(question[kind] for kind in STATES), 0.0, []
    for kind in STATES:
        width = 100 * question[kind] / total
        pieces.append(f'<rect class="{kind}" x="{start:.2f}" y="0" width="{width:.2f}" height="10"/>')
        start += width
    return f'<svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">{"".join(pieces)}</svg>'


def _mistakes_part(mistakes: list[dict]) -> str:
    headers = ("mistake", "count", "what it means")
    rows = [
        (
            f"{shown(one['mistake'])}<br>{shown(one['exercise'])} {shown(one['question'])}",
            str(one["count"]),
            shown(one["meaning"]),
        )
        for one in mistakes
    ]
    body = table("Recognised mistakes, most frequent first", headers, rows, numbers=(1,))
    return f"<section><h2>Frequent mistakes</h2>{body if rows else '<p>None was recognised.</p>'}</section>"


def _gaps_part(gaps: list[dict]) -> str:
    lines = [f"{gap['exercise']} {gap['question']}: {gap['unrecognised']} wrong answers" for gap in gaps]
    about = f"<p>Questions with {GAP_COUNT} or more answers that fit no known mistake, and {GAP_SHARE:.0%} of all.</p>"
    body = bullets(lines) if lines else "<p>No question.</p>"
    return f"<section><h2>Wrong for reasons that the course does not know</h2>{about}{body}</section>"


def _look_part(look_at: list[dict]) -> str:
    rows = [
        (
            shown(one["learner"]),
            f"{shown(one['exercise'] or 'no known exercise')}<br>{shown(one['file'])}",
            (shown(one["problem"]) if one["problem"] else "") + (bullets(one["review"]) if one["review"] else ""),
        )
        for one in look_at
    ]
    body = table("Problems and what to review", ("learner", "notebook", "why"), rows)
    return f"<section><h2>Submissions to look at</h2>{body if rows else '<p>None.</p>'}</section>"


def _identical_part(groups: list[dict]) -> str:
    about = "<p>The same bytes from different learners; an untouched exercise is the same for everybody.</p>"
    rows = []
    for group in groups:
        same = group["notebooks"]
        lines = [f"{one['learner']}, {one['points']} of {one['of']} points: {one['file']}" for one in same]
        rows.append((shown(group["sha256"], 12), bullets(lines)))
    body = table("Notebooks by their SHA-256", ("SHA-256", "notebooks"), rows)
    return f"<section><h2>Identical notebooks</h2>{about}{body if rows else '<p>None.</p>'}</section>"
