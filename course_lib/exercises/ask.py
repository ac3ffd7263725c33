"""Run a question's probe beside the learner's code; give back plain values only.

Needs NumPy. This half may meet any code at all: it knows no targets and no
references, so that a grader can run it inside a sandbox.
"""

import difflib
import dis
import functools
import itertools
import linecache
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, GeneratorType

import numpy as np

from course_lib.errors import telling_line
from course_lib.exercises.time_limit import OutOfTime, time_limit

WRITE_HERE = "write your answer here"  # ends the message of what generation puts into a blank
_FRAMEWORKS = ("tensorflow", "keras", "jax", "jaxlib", "numpy")
_PLAIN_SCALARS = (bool, int, float, str, type(None))
_PLAIN_KINDS = "biufcUS"  # NumPy's kinds that hold numbers or text, never objects
_LONGEST_LINE = 240
_TRACED_FRAME = re.compile(r"line (\d+), in (\w+)  \*\n(.*)")  # one star: code that TensorFlow traced


class NotPlain(TypeError):
    """A probe's value is more than numbers, text and arrays."""


class ReturnedNothing(Exception):
    """A learner's function returned no answer. While it traces, TensorFlow raises it again with a longer text."""


class Stopped(Exception):
    """Raised by a probe whose learner's code ran in other processes and did not get as far as an answer there.

    kind, line, error  as in what `ask` returns
    """

    def __init__(self, kind: str, line: str, error: str = ""):
        super().__init__(line)
        self.kind, self.line, self.error = kind, line, error


def ask(
    probe: Callable[[Mapping[str, object], int], dict[str, object]],
    asks_for: tuple[str, ...],
    names: Mapping[str, object],
    seed: int,
    look: Callable[[object], object] = lambda result: result,
    seconds: float | None = None,
) -> dict[str, object]:
    """Probe the learner's names with inputs drawn from the seed.

    names    the learner's namespace
    look     called with what a function of the learner's has come back with; gives what the probe gets instead
    seconds  after which it is stopped; see time_limit
    Returns  the probe's plain values; or, when the code did not get that far,
             {"stopped": {"kind", "line", ...}} with kind "missing", "blank",
             "nothing", "raised" (and its "error") or "not plain"
    """
    for name in asks_for:
        if name not in names:
            return _stopped("missing", _missing(name, names))
        if names[name] is None or names[name] is ...:
            return _stopped("blank", f"{name} is still blank")
    try:
        watched = {name: _watched(names[name], look) for name in asks_for}
        with time_limit(seconds):
            return plain(probe(watched, seed))
    except NotPlain as error:
        return _stopped("not plain", str(error))
    except Stopped as stop:
        return _stopped(stop.kind, stop.line, error=stop.error)
    except ReturnedNothing as error:
        said = in_one_line("ReturnedNothing", str(error)).removeprefix("ReturnedNothing: ")
        return _stopped("nothing", said)
    except OutOfTime as error:
        place = _own_place(error, names)
        text = f"it had not ended after {seconds:g} s{place and ', ' + place}; does a loop or a data set never end?"
        return _stopped("raised", text, error="OutOfTime")
    except Exception as error:
        if isinstance(error, NotImplementedError) and _is_blank(error, names):
            return _stopped("blank", _shortened(str(error)))
        text = in_one_line(type(error).__name__, str(error))
        place = _own_place(error, names)
        unplaced = f"{' or '.join(asks_for)} does not work as the docstring says ({text})"
        return _stopped("raised", f"{text}, {place}" if place else unplaced, error=text)


def plain(value: object, key: str = "answers") -> object:
    """The value with NumPy scalars as Python's, if it is plain all through.

    Raises  NotPlain naming the key when anything else is in it: an object that
            defines its own == must never reach a comparison
    """
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in _PLAIN_SCALARS:
        return value
    if type(value) in (list, tuple):
        return [plain(item, f"{key}[{place}]") for place, item in enumerate(value)]
    if type(value) is dict and all(type(name) is str for name in value):
        return {name: plain(item, name) for name, item in value.items()}
    if type(value) is np.ndarray and value.dtype.kind in _PLAIN_KINDS:
        return value
    raise NotPlain(f"{key} is of type {type(value).__name__}, where a number, a text or an array of them is expected")


def in_one_line(kind: str, message: str) -> str:
    """An exception by its type's name and the line of its message that says what happened: "KeyError: 'x'"."""
    said = _shortened(message).removeprefix(f"{kind}:").strip()
    return f"{kind}: {said}" if said else kind


def _stopped(kind: str, line: str, **more: str) -> dict[str, object]:
    return {"stopped": {"kind": kind, "line": line, **more}}


def _missing(name: str, names: Mapping[str, object]) -> str:
    mine = [other for other in names if not other.startswith("_") and isinstance(names[other], (FunctionType, type))]
    close = difflib.get_close_matches(name, mine, n=3)
    return (
        f"it asks for {name}, which this notebook has not defined; "
        "was its cell deleted, renamed, or not run yet?" + (f" Did you mean {' or '.join(close)}?" if close else "")
    )


def _watched(value: object, look: Callable[[object], object]) -> object:
    """A function, or another callable that is no framework's: its answers are looked at, and one must come back."""
    package = str(type(value).__module__).partition(".")[0]
    if isinstance(value, type) or not callable(value) or package in _FRAMEWORKS:
        return value

    @functools.wraps(value)
    def answered(*args, **kwargs):
        args, kwargs = _as_it_takes(value, args, kwargs)
        result = look(value(*args, **kwargs))
        if result is None:
            raise ReturnedNothing(_returned_nothing(value, answered.__name__, args, kwargs))
        if result is ...:
            raise NotImplementedError(WRITE_HERE)
        return _each(result, look) if isinstance(result, GeneratorType) else result

    return answered


def _each(results: GeneratorType, look: Callable[[object], object]) -> Iterator[object]:
    yield from map(look, results)
    look(None)  # at what the function did after its last one


def _as_it_takes(function: Callable, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Arguments by position, in the docstring's order, for a function that calls its parameters something else."""
    code = getattr(function, "__code__", None)
    own = code.co_varnames[: code.co_argcount] if code else ()
    renamed = len(own) == len(args) + len(kwargs) and not kwargs.keys() <= {*own}
    return ((*args, *kwargs.values()), {}) if renamed else (args, kwargs)


def _returned_nothing(function: Callable, name: str, args: tuple, kwargs: Mapping[str, object]) -> str:
    """The call that gave None, and what is missing there; a `return` only where the function has none."""
    if not _returns_a_value(function):
        return f"{name} returned None; does it end with a `return`?"
    given = ", ".join([*map(_brief, args), *(f"{key}={_brief(value)}" for key, value in kwargs.items())])
    due = ", or raise the ValueError of its docstring" if "ValueError" in (function.__doc__ or "") else ""
    return f"{name}({given}) returned None; return an answer in this case too{due}"


def _returns_a_value(function: Callable) -> bool:
    """Whether its code has a `return` with anything but None."""
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code is None or any(
        (step.opname == "RETURN_VALUE" and not (before.opname == "LOAD_CONST" and before.argval is None))
        or (step.opname == "RETURN_CONST" and step.argval is not None)  # Python 3.12
        for before, step in itertools.pairwise(dis.get_instructions(code))
    )


def _brief(value: object) -> str:
    shape = getattr(value, "shape", None)
    return f"an array of shape {tuple(shape)}" if shape else reprlib.repr(value)


def _is_blank(error: NotImplementedError, names: Mapping[str, object]) -> bool:
    """The blank's own, or the learner's; frameworks raise it too, for what they cannot do."""
    step = error.__traceback__
    while step.tb_next:
        step = step.tb_next
    return WRITE_HERE in str(error) or step.tb_frame.f_globals is names


def _shortened(message: str) -> str:
    line = telling_line(message)
    return line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + " ..."


def _own_place(error: Exception, names: Mapping[str, object]) -> str:
    """Where in the learner's own code the error arose; empty when it did not."""
    own, step = None, error.__traceback__
    while step is not None:
        if step.tb_frame.f_globals is names and "__autograph_generated" not in step.tb_frame.f_code.co_filename:
            own = step
        step = step.tb_next
    traced = _TRACED_FRAME.findall(str(error)) if own else []
    if traced:  # TensorFlow runs a rewritten copy; its message names the learner's own line
        line, function, source = traced[-1]
    elif own:
        code, line = own.tb_frame.f_code, own.tb_lineno
        function, source = code.co_name, linecache.getline(code.co_filename, line)
    else:
        return ""
    return f"in {function}, line {line} of its cell" + (f": {source.strip()}" if source.strip() else "")
