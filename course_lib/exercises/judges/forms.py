"""The form that answers must have before a bank computes with them. Needs NumPy.

Answers come out of a learner's process and may be anything plain: a NaN that no
comparison finds too large, True where 1 is meant, a text that Python repeats ten
billion times. A form is a predicate below; `[form]`, a list of any length;
`(form, form)`, a list with as many places; `{key: form}`, a dict with these keys,
and where `str` is among them with any others; or what `either` and
`each_replica` make of such.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from course_lib.exercises.question import Answers, Question

LARGEST_WHOLE = 2**63  # beyond any count of bytes, and quick to compute with
LONGEST_TEXT = 2_000
MOST_VALUES = 10_000  # in all answers, of which right ones have far fewer
NUMBERS_A_VALUE = 50  # of an array: so many cost as little time as one value of a list
MOST_REPLICAS = 64


class OtherForm(ValueError):
    """Answers of another form than their question's."""


def number(value: object) -> bool:
    """a finite number"""
    return any_number(value) and math.isfinite(value)


def distance(value: object) -> bool:
    """a finite number of at least 0"""
    return number(value) and value >= 0


def share(value: object) -> bool:
    """a share of a whole, from 0 to 1"""
    return number(value) and 0 <= value <= 1


def any_number(value: object) -> bool:
    """a number"""
    return type(value) is float or whole(value)


def scalar(value: object) -> bool:
    """a number, True, False or None"""
    return value is None or flag(value) or any_number(value)


def whole(value: object) -> bool:
    """a whole number"""
    return type(value) is int and abs(value) < LARGEST_WHOLE


def count(value: object) -> bool:
    """a whole number of at least 1"""
    return whole(value) and value >= 1


def size(value: object) -> bool:
    """a whole number of at least 0"""
    return whole(value) and value >= 0


def flag(value: object) -> bool:
    """True or False"""
    return type(value) is bool


def nothing(value: object) -> bool:
    """None"""
    return value is None


def anything(value: object) -> bool:
    """of any form, because nothing is computed with it"""
    return True


def text(value: object) -> bool:
    """a text"""
    return type(value) is str and len(value) <= LONGEST_TEXT


def replicas(value: object) -> bool:
    """a number of replicas from 2, as the set-up cell makes them in a fresh kernel"""
    return type(value) is int and 2 <= value <= MOST_REPLICAS


def devices(value: object) -> bool:
    """a list of all CPUs or all GPUs, by their names"""
    if type(value) is not list or not 1 <= len(value) <= MOST_REPLICAS:
        return False
    return any(value == [f"{kind}:{place}" for place in range(len(value))] for kind in ("CPU", "GPU"))


def array(value: object) -> bool:
    """an array of finite numbers"""
    return any_array(value) and bool(np.isfinite(value).all())


def any_array(value: object) -> bool:
    """an array of numbers"""
    if type(value) is list:  # from a worker's result or a recording
        return all(type(leaf) is list or any_number(leaf) for leaf in _leaves(value)) and _has_shape(value)
    return type(value) is np.ndarray and value.dtype.kind in "iuf"


def words(*known: str) -> Callable[[object], bool]:
    """The form of one of these texts."""

    def word(value: object) -> bool:
        return type(value) is str and value in known

    word.__doc__ = " or ".join(map(repr, known))
    return word


@dataclasses.dataclass(frozen=True)
class _Either:
    forms: tuple


@dataclasses.dataclass(frozen=True)
class _EachReplica:
    form: object


def either(*forms: object) -> _Either:
    """A form that fits where one of these does."""
    return _Either(forms)


def each_replica(form: object) -> _EachReplica:
    """The form of a list with an item for each replica, from 2."""
    return _EachReplica(form)


def formed(question: Question, form: object) -> Question:
    """The question, its targets and recognisers given answers of this form alone.

    What stopped the probe passes as it is. With answers of another form a target is
    not met, and the line names the place; a recogniser does not recognise them.
    """

    def guarded(judge: Callable | None) -> Callable | None:
        def judged(answers: Answers, seed: int) -> object:
            if "stopped" not in answers:
                _require_size(answers)
                _require(form, answers, "your answer")
            with np.errstate(all="ignore"):  # large numbers overflow, and count as wrong for that
                return judge(answers, seed)

        return judge and judged

    return dataclasses.replace(
        question,
        targets=tuple(dataclasses.replace(target, holds=guarded(target.holds)) for target in question.targets),
        mistakes=tuple(dataclasses.replace(one, recognise=guarded(one.recognise)) for one in question.mistakes),
    )


def _require_size(answers: Answers) -> None:
    seen = 0
    for value in _leaves(list(answers.values())):
        seen += 1 + (value.size // NUMBERS_A_VALUE if isinstance(value, np.ndarray) else 0)
        if seen > MOST_VALUES:
            raise OtherForm("it has far more values than the question asks for")


def _require(form: object, value: object, name: str) -> None:
    """Raise OtherForm, naming the place, for a value of another form."""
    if isinstance(form, _Either):
        _require_one_of(form.forms, value, name)
    elif isinstance(form, _EachReplica):
        _require(replicas, len(value) if type(value) is list else value, f"the length of {name}")
        _require([form.form], value, name)
    elif isinstance(form, dict):
        _require_dict(form, value, name)
    elif isinstance(form, list | tuple):
        _require_list(form, value, name)
    elif not form(value):
        raise OtherForm(f"{name} is {_shown(value)}, where {form.__doc__} is expected")


def _require_one_of(forms: tuple, value: object, name: str) -> None:
    *others, last = forms
    for form in others:
        try:
            return _require(form, value, name)
        except OtherForm:
            continue
    _require(last, value, name)


def _require_list(form: list | tuple, value: object, name: str) -> None:
    if type(value) is not list:
        raise OtherForm(f"{name} is {_shown(value)}, where a list is expected")
    if isinstance(form, tuple) and len(form) != len(value):
        raise OtherForm(f"{name} has {len(value)} items, where {len(form)} are expected")
    for place, item in enumerate(value):
        _require(form[place if isinstance(form, tuple) else 0], item, f"{name}[{place}]")


def _require_dict(form: dict, value: object, name: str) -> None:
    if type(value) is not dict:
        raise OtherForm(f"{name} is {_shown(value)}, where a dict is expected")
    if missing := [key for key in form if key is not str and key not in value]:
        raise OtherForm(f"{name} has no {missing[0]!r}")
    for key, item in value.items():
        if type(key) is not str or key not in form and str not in form:
            raise OtherForm(f"{name} has {_shown(key)}, which is not expected")
        _require(form[key] if key in form else form[str], item, f"{name}'s {key[:40]!r}")


def _leaves(value: list):
    """All that is in nested lists and dicts, without recursion: these may be deeper than Python's stack."""
    left = [value]
    while left:
        item = left.pop()
        if type(item) in (list, dict) and item:
            left += item.values() if type(item) is dict else item
        else:
            yield item


def _has_shape(value: list) -> bool:
    try:
        return np.asarray(value, "float64").ndim > 0
    except (ValueError, TypeError):
        return False


def _shown(value: object) -> str:
    return f"{value!r:.40}" if scalar(value) or text(value) else f"of type {type(value).__name__}"
