"""Judge plain answers against a question's targets and known mistakes.

Needs NumPy. Pure: the same question, answers and seed give the same verdict, and
no learner's object or code is in sight.
"""

import numpy as np

from course_lib.exercises.ask import ask
from course_lib.exercises.question import Answers, Mistake, Question, Target
from course_lib.exercises.verdict import NO_ANSWER, STILL_BLANK, TargetResult, Verdict

RELATIVE, ABSOLUTE = 1e-5, 1e-7  # float32 rounding; mistakes differ by far more
LONGEST_DETAIL, LONGEST_PROBLEM = 300, 600  # characters; an answer may quote megabytes into either
UNREADABLE = {"kind": "raised", "line": "what its probe gave back cannot be read", "error": ""}


def judge(question: Question, answers: Answers, seed: int) -> Verdict:
    """Compare what ask.ask gave back with the question's targets.

    answers  a dict of plain values; nothing about their form is taken for granted
    seed     the one that the probe drew its inputs from
    Returns  a verdict with both hints of the first mistake that fits
    """
    stopped = _stopped(answers)
    answers = {"stopped": stopped} if stopped else answers
    targets = () if stopped else tuple(_result(target, answers, seed) for target in question.targets)
    right = not stopped and all(target.met for target in targets)
    mistake = None if right or _has_no_answer(stopped) else _first_fitting(question, answers, seed)
    return Verdict(
        question=question.name,
        title=question.title,
        right=right,
        points=question.points if right else 0,
        of=question.points,
        targets=targets,
        mistake=mistake.name if mistake else None,
        hints=(mistake.what, mistake.where) if mistake else (),
        problem=_problem(stopped) if stopped else "",
    )


def same(one: object, other: object) -> bool:
    """Whether two plain values are equal, numbers to float32 rounding; values nested too deep to compare are not."""
    try:
        return _same(one, other)
    except RecursionError:
        return False


def _same(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, (str, type(None))) or isinstance(other, (str, type(None))):
        return type(one) is type(other) and one == other
    if isinstance(one, (dict, list)) or isinstance(other, (dict, list)):
        return False
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape or {"U", "S", "O"} & {one.dtype.kind, other.dtype.kind}:  # O: an int beyond 64 bits
        return np.array_equal(one, other)
    return bool(np.allclose(one, other, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True))


def _result(target: Target, answers: Answers, seed: int) -> TargetResult:
    try:
        held = target.holds(answers, seed)
    except Exception as error:  # an answer of another form than the target expects
        held = f"your answer has another form than the docstring says ({error})"
    met = bool(held) and not isinstance(held, str)
    return TargetResult(target.goal, met, "" if met or not held else _cut(str(held), LONGEST_DETAIL))


def _first_fitting(question: Question, answers: Answers, seed: int) -> Mistake | None:
    return next((mistake for mistake in question.mistakes if _fits(question, mistake, answers, seed)), None)


def _fits(question: Question, mistake: Mistake, answers: Answers, seed: int) -> bool:
    try:
        if mistake.recognise:
            return bool(mistake.recognise(answers, seed))
        return same(_comparable(answers), _comparable(answers_of(question, mistake, seed)))
    except Exception:  # the answers have another form than a comparison can take
        return False


def answers_of(question: Question, mistake: Mistake, seed: int) -> Answers:
    """What the question's probe gives for the mistake."""
    return ask(question.probe, question.asks_for, question.stand_ins(mistake), seed)


def _comparable(answers: Answers) -> Answers:
    """An exception is the same wherever in the code it was raised."""
    stopped = answers.get("stopped")
    return {"stopped": [stopped["kind"], stopped.get("error", "")]} if stopped else answers


def _stopped(answers: object) -> dict[str, str] | None:
    """What stopped the probe, in the form that ask.ask gives it; None where there are answers."""
    if isinstance(answers, dict) and "stopped" not in answers:
        return None
    found = answers["stopped"] if isinstance(answers, dict) else None
    parts = {key: found.get(key, UNREADABLE[key]) for key in UNREADABLE} if isinstance(found, dict) else UNREADABLE
    return parts if all(isinstance(part, str) for part in parts.values()) else UNREADABLE


def _cut(line: str, longest: int) -> str:
    return line if len(line) <= longest else line[:longest] + " ..."


def _has_no_answer(stopped: dict | None) -> bool:
    return bool(stopped) and stopped["kind"] in ("missing", "blank", "nothing")


def _problem(stopped: dict) -> str:
    if stopped["kind"] == "blank":
        return STILL_BLANK
    line = _cut(stopped["line"], LONGEST_PROBLEM)
    if stopped["kind"] == "missing":
        return f"{NO_ANSWER} yet: {line}"
    return f"is not right yet: {line}"
