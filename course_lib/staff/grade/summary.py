"""The class at a glance, for the examiner: summary.json, and summary.html that shows the same figures. Needs Jinja2.

It holds review lines, so it is not for learners. The same results in any order give the same bytes.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from course_lib.exercises.verdict import Verdict
from course_lib.staff.grade import feedback
from course_lib.staff.grade.results import Result, state, write_whole
from course_lib.staff.html_page import page

STATES = ("right", "wrong", "blank", "unchecked")
GAP_COUNT, GAP_SHARE = 3, 0.1  # so many wrong answers that fit no known mistake, and this share: the bank has a gap
_OF_NOTHING = hashlib.sha256(b"").hexdigest()  # what could not be read


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
    names, by_learner = sorted({result.exercise for result in ordered if result.exercise}), {}
    for result in ordered:
        by_learner.setdefault(result.learner, []).append(result)
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
        "points_by_learner": [_points(*one) for one in sorted(by_learner.items())],
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


def _points(learner: str, results: Sequence[Result]) -> dict[str, object]:
    return {
        "learner": learner,
        "page": feedback.page_of(learner),
        "points": sum(result.points for result in results),
        "of": sum(result.of for result in results),
        "notebooks": len(results),
        "problems": sum(bool(result.problem) for result in results),
    }


def _learner_and_file(result: Result) -> dict[str, str]:
    return {"learner": result.learner, "page": feedback.page_of(result.learner), "file": result.file}


def _mean(points: Sequence[int]) -> float | None:
    return round(sum(points) / len(points), 3) if points else None


def as_html(found: dict) -> str:
    """The page of what figures gives."""
    return page("summary.html", gap_count=GAP_COUNT, gap_share=GAP_SHARE, **found)
