"""A learner's module as another process finds it, which has run the same cells and no more. Standard library only."""

import contextlib
import copy
import dis
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import CodeType, FunctionType, ModuleType

_OF_THE_MODULE = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")  # instructions with a name of its


def memory_of(*functions: Callable) -> Callable[[], AbstractContextManager[None]]:
    """Copy the data that a learner's functions now find: by name in their module, in default arguments, in attributes
    of functions and classes, and in what functions close over.

    Returns  makes a block in which they find that again, and nothing that calls left there meanwhile; functools'
             caches are empty at its beginning and at its end
    """
    module = _module_of(functions[0])
    reached, names = _reached(functions, module)
    caches = [one for one in reached if hasattr(one, "cache_clear")]
    places = [place for one in reached for place in _places(one, module)]

    def now() -> list:
        data = {name: module[name] for name in names if name in module and _is_data(module[name], module)}
        return [data, *(read() for read, _ in places)]

    def put(state: list) -> None:
        for name in names:
            if name in module and _is_data(module[name], module):
                del module[name]
        module.update(state[0])
        for (_, write), value in zip(places, state[1:]):
            write(value)
        for cache in caches:
            cache.cache_clear()

    before = _copied(now())

    @contextlib.contextmanager
    def as_before() -> Iterator[None]:
        here = now()
        put(_copied(before))
        try:
            yield
        finally:
            put(here)

    return as_before


def _module_of(function: Callable) -> dict[str, object]:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "__globals__", {})


def _reached(functions: tuple[Callable, ...], module: dict[str, object]) -> tuple[list, set[str]]:
    """The module's functions, classes and caches that these functions come to, and the module's names in their code."""
    left, seen, reached, names = [*functions], set(), [], set()
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        left += [getattr(value, name) for name in ("__wrapped__", "__func__", "fget") if hasattr(value, name)]
        if isinstance(value, FunctionType):
            if value.__globals__ is module:
                own = _names_in(value.__code__)
                names |= own
                reached.append(value)
                left += [*(module[name] for name in own if name in module), *map(_content, value.__closure__ or ())]
        elif _is_own_class(value, module):
            reached.append(value)
            left += vars(value).values()
        elif hasattr(value, "cache_clear"):
            reached.append(value)
        elif _is_own_class(type(value), module):
            left.append(type(value))
    return reached, names


def _names_in(code: CodeType) -> set[str]:
    found = {step.argval for step in dis.get_instructions(code) if step.opname in _OF_THE_MODULE}
    return found.union(*(_names_in(part) for part in code.co_consts if isinstance(part, CodeType)))


def _places(value: object, module: dict[str, object]) -> list[tuple[Callable, Callable]]:
    """Where a function or a class keeps data: how to read each place, and how to write it."""
    if isinstance(value, FunctionType):
        cells = [cell for cell in value.__closure__ or () if _is_data(_content(cell), module)]
        single = [(value, "__defaults__"), (value, "__kwdefaults__"), *((cell, "cell_contents") for cell in cells)]
        return [*(_attribute(*place) for place in single), _attributes(value, lambda one: True)]
    if isinstance(value, type):
        return [_attributes(value, lambda one: _is_data(one, module) and not hasattr(one, "__get__"))]
    return []


def _attribute(holder: object, name: str) -> tuple[Callable, Callable]:
    return lambda: getattr(holder, name, None), lambda value: setattr(holder, name, value)


def _attributes(holder: object, are_data: Callable[[object], bool]) -> tuple[Callable, Callable]:
    """Those that are data, also such as the holder gets later."""

    def read() -> dict[str, object]:
        return {name: one for name, one in vars(holder).items() if not name.startswith("__") and are_data(one)}

    def write(values: dict[str, object]) -> None:
        for name in read().keys() - values.keys():
            delattr(holder, name)
        for name, value in values.items():
            setattr(holder, name, value)

    return read, write


def _content(cell) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # still empty
        return None


def _is_own_class(value: object, module: dict[str, object]) -> bool:
    return isinstance(value, type) and value.__module__ == module.get("__name__")


def _is_data(value: object, module: dict[str, object]) -> bool:
    return not isinstance(value, ModuleType) and (not callable(value) or _is_own_class(type(value), module))


def _copied(state: list) -> list:
    """Copies of data, one of what two places share. What cannot be copied stays what it is."""
    memo: dict[int, object] = {}

    def copied(value):
        try:
            return copy.deepcopy(value, memo)
        except Exception:
            return value

    return [{name: copied(value) for name, value in state[0].items()}, *map(copied, state[1:])]
