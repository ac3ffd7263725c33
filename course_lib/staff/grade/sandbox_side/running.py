"""Run a notebook's cells and its questions' probes in this process, and report each at once. Needs IPython and NumPy.

A probe runs right after the cell that answers its question, so a later crash keeps
earlier points. Nothing here knows a target, and what it reports is judged elsewhere. Import
it when all that submissions import is loaded: classes that come later are the learner's.
"""

import importlib
import signal
import sys
from collections.abc import Callable
from signal import ITIMER_REAL, setitimer  # bound before a learner's code can replace them

import numpy as np

from course_lib.errors import telling_line
from course_lib.exercises.ask import ask
from course_lib.staff.grade.sandbox_side import answers as form
from course_lib.staff.grade.sandbox_side.channel import CHECK, LOOK, RECORD, open_channel

MOST_ITEMS = 10_000  # of a learner's list that are looked at one by one
KNOWN_CLASSES = frozenset(
    value
    for module in list(sys.modules.values())
    for value in list(getattr(module, "__dict__", {}).values())
    if isinstance(value, type)
)


class TimeUp(BaseException):
    """A cell's time is over; no `except Exception` of the cell's own takes it for its own error."""


def questions_of(job: dict) -> tuple[tuple, ...]:
    """(name, asks_for, probe, seed) of each question; finds the probes while nothing of the learner's has run."""
    return tuple(
        (
            one["name"],
            tuple(one["asks_for"]),
            getattr(importlib.import_module(one["module"]), one["probe"]),
            one["seed"],
        )
        for one in job["questions"]
    )


def run(job: dict, descriptor: int, guard: list, shell) -> None:
    """Run every cell that is not to be skipped.

    job  "cells": source or None each, in order; "answering": per question the places of its answering cells;
         "checking": per question those that call its check; "cell_seconds"; "skip_cells" and "skip_questions", which
         ended an earlier run
    """
    questions = questions_of(job)
    signal.signal(signal.SIGALRM, _time_is_up)
    open_channel(descriptor, sys._getframe(), guard, questions)
    seconds, skipped, unasked = job["cell_seconds"], frozenset(job["skip_cells"]), frozenset(job["skip_questions"])
    answering, checking = (tuple(map(frozenset, job[name])) for name in ("answering", "checking"))
    answered = {number for number, question in enumerate(questions) if question[0] in unasked}
    for place, source in enumerate(tuple(job["cells"])):
        if source is None or place in skipped:
            continue
        _tell_beginning(place)
        error = _execute(shell, source, seconds)
        if error:
            _tell_error(place, error)
        for number, question in enumerate(questions):
            is_due = place in answering[number] or place in checking[number] and number not in answered
            if is_due and question[0] not in unasked:
                answered |= {number} if _look(question, shell, seconds) else set()
    for number, question in enumerate(questions):
        if number not in answered:
            _look(question, shell, seconds)
    _tell_end()


def _tell_beginning(what: int | str) -> None:
    """A cell by its place, or a probe by its question: which one it was, when nothing comes after it."""
    record = {"begins": what}
    sys.audit(RECORD)


def _tell_error(place: int, error: str) -> None:
    record = {"error": error, "at": place}
    sys.audit(RECORD)


def _tell_end() -> None:
    record = {"end": True}
    sys.audit(RECORD)


def _look(question: tuple, shell, seconds: float) -> bool:
    """Probe one question and report its answers; whether the learner's code got as far as one."""
    name, asks_for, probe, seed = question
    _tell_beginning(name)
    held = []  # what the learner's code returned: no finalizer of it runs before the record is out

    def look(result: object) -> object:
        held.append(result)
        return _look_around(result)

    answers = _within(seconds, lambda: ask(probe, asks_for, shell.user_ns, seed, look))
    if "stopped" not in answers:  # else there is nothing to be gained
        sys.audit(CHECK)
    try:
        packed = form.pack(answers)
    except ValueError as error:
        packed = form.pack({"stopped": {"kind": "not plain", "line": str(error)}})
    record = {"question": name, "seed": seed, "answers": packed, "stopped": "stopped" in answers}
    sys.audit(RECORD)
    return "stopped" not in answers


def _look_around(result: object) -> object:
    """Take what a probe reads out of objects of the learner's own classes, then see whether anything was replaced.

    Their methods would run after this look, and could replace a function and put it back unseen.
    """
    if type(result) in (list, tuple) and len(result) < MOST_ITEMS:
        result = type(result)(map(_taken_out, result))
    result = _taken_out(result)
    sys.audit(LOOK)
    return result


def _taken_out(value: object) -> object:
    kind = type(value)
    if kind in KNOWN_CLASSES or issubclass(kind, (type, str, dict)):
        return value
    if hasattr(kind, "__array__"):
        return np.array(value)
    return list(value) if hasattr(kind, "__iter__") or hasattr(kind, "__next__") else value


def _within(seconds: float, work: Callable[[], dict]) -> dict:
    """What the work gives, or that it took too long or tried to leave."""
    setitimer(ITIMER_REAL, seconds)
    try:
        return work()
    except TimeUp:
        line = f"it ran for more than {seconds:g} s and was stopped"
    except BaseException as error:  # an exit() among them
        line = f"{type(error).__name__} left the check"
    finally:
        setitimer(ITIMER_REAL, 0)
    return {"stopped": {"kind": "raised", "line": line, "error": line}}


def _execute(shell, source: str, seconds: float) -> str:
    """Run one cell as a notebook would; the line of its exception, or ""."""
    signal.signal(signal.SIGALRM, _time_is_up)
    setitimer(ITIMER_REAL, seconds)
    try:
        result = shell.run_cell(source, store_history=False)
        error = result.error_before_exec or result.error_in_exec
    except BaseException as raised:
        error = raised
    finally:
        setitimer(ITIMER_REAL, 0)
        _flush()
    if isinstance(error, TimeUp):
        return f"it ran for more than {seconds:g} s and was stopped"
    return _line_of(error) if error is not None else ""


def _line_of(error: BaseException) -> str:
    """Its type and the first line of its message; an exception of the learner's may fail to say anything."""
    try:
        return f"{type(error).__name__}: {telling_line(str(error))}"[:300]
    except BaseException:
        return type(error).__name__


def _flush() -> None:
    """Let out what a cell printed, and give the next one its streams back."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except Exception:  # closed or replaced by the cell
            pass
        setattr(sys, name, getattr(sys, f"__{name}__"))


def _time_is_up(number: int, frame: object) -> None:
    raise TimeUp
