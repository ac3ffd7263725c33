"""What differs from process to process, seen in one: the hash of a text. Standard library only."""

import inspect
from collections.abc import Callable

from course_lib.errors import CourseError

SALTED = "hash() of a text is another number in every process"


def alike_in_processes(function: Callable) -> Callable:
    """The same function, but that hash() of a text in the learner's code raises a CourseError.

    Each process salts it in its own way, which a check in one process could not see. Only the learner's module has
    another `hash` meanwhile: the class grader sees whether the interpreter's own functions are replaced.
    """
    module = getattr(inspect.unwrap(function), "__globals__", {})

    def unsalted(value: object) -> int:
        if _holds_text(value):
            raise CourseError(f"{SALTED}: draw by the numbers themselves.")
        return hash(value)

    def asked(*arguments, **named):
        if "hash" in module:  # the learner's own
            return function(*arguments, **named)
        module["hash"] = unsalted
        try:
            return function(*arguments, **named)
        finally:
            module.pop("hash", None)

    return asked


def _holds_text(value: object) -> bool:
    return isinstance(value, (str, bytes)) or isinstance(value, (tuple, frozenset)) and any(map(_holds_text, value))
