"""What differs from process to process, seen in one: the hash of a text. Standard library only."""

import builtins
import inspect
import sys
from collections.abc import Callable
from unittest import mock

from course_lib.errors import CourseError

SALTED = "hash() of a text is another number in every process"


def alike_in_processes(function: Callable) -> Callable:
    """The same function, but that hash() of a text in the learner's code raises a CourseError.

    Each process salts it in its own way, which a check in one process could not see.
    """
    learners, plain = getattr(inspect.unwrap(function), "__globals__", None), hash

    def unsalted(value: object) -> int:
        if sys._getframe(1).f_globals is learners and _holds_text(value):
            raise CourseError(f"{SALTED}: draw by the numbers themselves.")
        return plain(value)

    def asked(*arguments, **named):
        with mock.patch.object(builtins, "hash", unsalted):
            return function(*arguments, **named)

    return asked


def _holds_text(value: object) -> bool:
    return isinstance(value, (str, bytes)) or isinstance(value, (tuple, frozenset)) and any(map(_holds_text, value))
