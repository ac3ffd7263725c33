"""A learner's module as another process finds it, which has run the same cells and no more. Standard library only."""

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import CodeType, ModuleType


def memory_of(*functions: Callable) -> Callable[[], AbstractContextManager[None]]:
    """Copy the data that a learner's functions now find in their module by name.

    Returns  makes a block in which they find that again, and nothing that calls left there meanwhile
    """
    module = getattr(inspect.unwrap(functions[0]), "__globals__", {})
    used = set().union(*(_names_used(function, module) for function in functions))
    before = _copies({name: module[name] for name in used if _is_data(module.get(name))})

    @contextlib.contextmanager
    def as_before() -> Iterator[None]:
        now = {name: module.pop(name) for name in used if _is_data(module.get(name))}
        module.update(_copies(before))
        try:
            yield
        finally:
            for name in before:
                module.pop(name, None)
            module.update(now)

    return as_before


def _names_used(function: Callable, module: dict[str, object]) -> set[str]:
    """The names in a function's code, and in that of the module's functions that it calls."""
    left, seen, names = [getattr(inspect.unwrap(function), "__code__", None)], set(), set()
    while left:
        code = left.pop()
        if isinstance(code, CodeType) and code not in seen:
            seen.add(code)
            names |= {*code.co_names}
            left += [*code.co_consts, *(getattr(module.get(name), "__code__", None) for name in code.co_names)]
    return names


def _is_data(value: object) -> bool:
    return value is not None and not isinstance(value, ModuleType) and not callable(value)


def _copies(data: dict[str, object]) -> dict[str, object]:
    """What cannot be copied stays what it is."""
    copies = {}
    for name, value in data.items():
        try:
            copies[name] = copy.deepcopy(value)
        except Exception:
            copies[name] = value
    return copies
