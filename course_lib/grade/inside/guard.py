"""Whether what the probes rely on is still what was imported. Standard library.

A probe looks at distributed state through TensorFlow, Keras, JAX and NumPy, in the process of the learner's code;
code that replaces `tf.Tensor.device` could make it see anything.
"""

import builtins
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType

PACKAGES = frozenset(
    "course_lib numpy tensorflow keras jax jaxlib builtins operator functools itertools json math inspect "
    "collections contextlib re random".split()
)


def is_relied_on(module_name: object) -> bool:
    """Whether a module's functions are what probes rely on; TensorFlow's older interfaces are not."""
    if type(module_name) is not str:
        return False
    top, *inner = module_name.split(".")
    return top in PACKAGES and "compat" not in inner


def take_snapshot() -> tuple[Callable[[], str], Callable[[object], bool]]:
    """Remember every function, class and class attribute of the packages loaded now.

    Returns  changed() -> the name of one of them that has been replaced since, or "", in some 30 ms; knows(value) ->
             whether the value is one of them. Both hold by themselves all that they use, so that replacing a built-in
             function does not mislead them.
    """
    tables, classes, cells = [], {}, []
    for name, module in sorted(sys.modules.items()):
        if isinstance(module, ModuleType) and is_relied_on(name):
            everything = name.split(".")[0] == "course_lib"  # no module of ours changes a name of its own
            tables.append(_table(name, vars(module), _is_anything if everything else callable))
    for *_, values in tables:
        classes |= {id(value): value for value in values if isinstance(value, type) and is_relied_on(value.__module__)}
        cells += [cell for value in values for cell in _closed_over(value)]
    kinds, ours = tuple(classes.values()), len(tables)
    tables += [_table(f"{one.__module__}.{one.__name__}", vars(one), _is_descriptor) for one in kinds]
    orders, contents = tuple(one.__mro__ for one in kinds), tuple(cell.cell_contents for cell in cells)
    every, pairs, same, size, is_a = all, map, operator.is_, len, isinstance
    order_of, content_of = operator.attrgetter("__mro__"), operator.attrgetter("cell_contents")
    built_in, module_type, can_call, sizes = frozenset(vars(builtins)), ModuleType, callable, [len(one[1]) for one in tables]

    def changed() -> str:
        for place, (name, now, keys, values) in enumerate_(tables):
            get = now.get
            if not every(pairs(same, pairs(get, keys), values)):
                return next_(f"{name}.{key}" for key, value in zip_(keys, values) if get(key) is not value)
            if place < ours and size(now) != sizes[place]:
                known = set_(keys)
                for key in list_(now):
                    if key in built_in and key not in known and not is_a(now[key], module_type) and can_call(now[key]):
                        return f"{name}.{key}"
        if not every(pairs(same, pairs(order_of, kinds), orders)):
            return "the bases of a class"
        return "" if every(pairs(same, pairs(content_of, cells), contents)) else "what a function closes over"

    def knows(value: object) -> bool:
        return identity(value) in identities

    enumerate_, next_, zip_, set_, list_, identity = enumerate, next, zip, set, list, id
    identities = frozenset(id(value) for *_, values in tables for value in values)
    return changed, knows


def _table(name: str, now: Mapping[str, object], counts: Callable[[object], bool]) -> tuple:
    keys = tuple(key for key, value in now.items() if counts(value))
    return name, now, keys, tuple(now[key] for key in keys)


def _is_anything(value: object) -> bool:
    return True


def _is_descriptor(value: object) -> bool:
    return hasattr(type(value), "__get__") or callable(value)


def _closed_over(value: object) -> Iterator[object]:
    """The cells of a function that hold another function; a counter in one may change."""
    for cell in (value.__closure__ or ()) if isinstance(value, FunctionType) else ():
        try:
            if callable(cell.cell_contents):
                yield cell
        except ValueError:  # still empty
            continue
