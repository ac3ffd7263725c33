"""The form in which answers leave the sandbox: one line of JSON, arrays as bytes with a shape. Needs NumPy.

`pack` runs beside the learner's code and must not call any of it, so it takes the
plain values of ask.plain alone; `unpack` runs outside and trusts nothing.
"""

import base64
import json
import math
from binascii import b2a_base64  # bound before a learner's code can replace it

import numpy as np

LARGEST_BYTES = 16 * 2**20  # of one question's answers, packed
MOST_VALUES = 1_000_000  # outside of arrays, of one question's: an empty list takes thirty times its text
_KINDS = "biufcUS"
_DEEPEST = 40


class Unreadable(ValueError):
    """A line that `pack` did not write."""


def pack(value: object) -> str:
    """Plain values as one line of JSON. Raises ValueError when it would be longer than LARGEST_BYTES."""
    size = _bytes(value)
    text = json.dumps(_tagged(value), separators=(",", ":")) if size <= LARGEST_BYTES else ""
    if max(size, len(text)) > LARGEST_BYTES:
        size = max(size, len(text))
        raise ValueError(f"the answers take {size / 2**20:.0f} MiB, and {LARGEST_BYTES / 2**20:.0f} MiB is the most")
    return text


def _bytes(value: object) -> int:
    """At least what the value takes, before anything is copied."""
    if type(value) is dict:
        return sum(len(name) + _bytes(item) for name, item in value.items())
    if type(value) is list:
        return sum(map(_bytes, value))
    return value.nbytes if type(value) is np.ndarray else len(value) if type(value) is str else 1


def unpack(text: str) -> object:
    """The plain values that pack wrote. Raises Unreadable for anything else."""
    try:
        if sum(map(text.count, ",[{")) > MOST_VALUES:
            raise ValueError("more values than can be taken")
        return _plain(json.loads(text), _DEEPEST)
    except (ValueError, TypeError, RecursionError) as error:
        raise Unreadable(str(error)[:200]) from None


def _tagged(value: object) -> object:
    if type(value) is dict:
        return {"d": {name: _tagged(item) for name, item in value.items()}}
    if type(value) is list:
        return [_tagged(item) for item in value]
    if type(value) is np.ndarray:
        content = b2a_base64(np.ascontiguousarray(value).tobytes(), newline=False).decode()
        return {"a": [value.dtype.str, list(value.shape), content]}
    return value


def _plain(value: object, depth: int) -> object:
    if depth == 0:
        raise ValueError("nested too deep")
    if isinstance(value, list):
        return [_plain(item, depth - 1) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # half a surrogate pair could be written to no file
    if not isinstance(value, dict):
        return value
    if value.keys() == {"d"} and isinstance(value["d"], dict):
        return {_plain(name, depth): _plain(item, depth - 1) for name, item in value["d"].items()}
    if value.keys() == {"a"}:
        return _array(*value["a"])
    raise ValueError("an object of another form")


def _array(dtype: str, shape: list[int], content: str) -> np.ndarray:
    kind = np.dtype(dtype if isinstance(dtype, str) and len(dtype) < 12 else "O")
    if kind.kind not in _KINDS or kind.hasobject or kind.itemsize == 0:
        raise ValueError("an array of another kind")
    if not all(type(side) is int and 0 <= side < 2**32 for side in shape) or len(shape) > 16:
        raise ValueError("an array of another shape")
    flat = base64.b64decode(content, validate=True)
    if len(flat) != math.prod(shape) * kind.itemsize:
        raise ValueError("an array with more or fewer bytes than its shape")
    return np.frombuffer(flat, kind).reshape(shape).copy()
