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
# Exercise 09's probe quickens it for the time of a check; it only waits.
_EXEMPT = ("tensorflow.python.training.coordinator.Coordinator.wait_for_stop",)
_QUIET = ("__annotations__", "__annotations_cache__", "__annotate__")  # a class makes them when it is asked
# Parts of those that no probe comes to, and half of all names: to look at a name copies its memory in every child.
APART = frozenset(
    "compat lite mlir _mlir_libs mosaic pallas _api debug feature_column tpu autograph export saved_model "
    "triton".split()
)


def is_relied_on(module_name: object) -> bool:
    """Whether a module's functions are what probes rely on."""
    if type(module_name) is not str:
        return False
    top, *inner = module_name.split(".")
    is_apart = not APART.isdisjoint(inner) or top == "tensorflow" and "keras" in inner
    return top in PACKAGES and not is_apart and not (inner and inner[-1].startswith("gen_"))


def take_snapshot() -> tuple[Callable[[], str], Callable[[object], bool]]:
    """Remember every function, class and class attribute of the packages loaded now.

    Returns  changed(near=False) -> the name of one of them that has been replaced since, or "", in some 30 ms; near
             looks only at what probes read state with, in 3 ms; knows(value) -> whether the value is one of them. Both
             hold everything that they use, so that replacing a built-in function does not mislead them.
    """
    tables, classes, cells, modules = [], {}, [], []
    for name, module in sorted(sys.modules.items()):
        if isinstance(module, ModuleType) and is_relied_on(name):
            modules.append(module)
            everything = name.split(".")[0] == "course_lib"  # no module of ours changes its own names
            tables.append(_table(name, vars(module), _is_anything if everything else callable))
    for *_, values in tables:
        classes |= {id(value): value for value in values if isinstance(value, type) and is_relied_on(value.__module__)}
        cells += [cell for value in values for cell in _closed_over(value)]
    kinds, ours = tuple(classes.values()), len(tables)
    tables += [_table(f"{one.__module__}.{one.__name__}", vars(one), _is_descriptor) for one in kinds]
    orders, contents = tuple(one.__mro__ for one in kinds), tuple(cell.cell_contents for cell in cells)
    every, pairs, same, size, counts = all, map, operator.is_, len, _is_descriptor
    functions = [value for name, *_, values in tables for value in values if _is_ours(name, value)]
    codes, code_of = [function.__code__ for function in functions], operator.attrgetter("__code__")
    order_of, content_of = operator.attrgetter("__mro__"), operator.attrgetter("cell_contents")
    kind_of, module_kinds = type, tuple(map(type, modules))  # another class could answer for a name in its place
    built_in, sizes, quiet = frozenset(vars(builtins)), [len(one[1]) for one in tables], frozenset(_QUIET)

    def changed(near: bool = False) -> str:
        for place, (name, now, keys, values) in enumerate_(tables):
            if near and not nearest[place]:
                continue
            get = now.get
            if not every(pairs(same, pairs(get, keys), values)):
                return next_(f"{name}.{key}" for key, value in zip_(keys, values) if get(key) is not value)
            # A module may gain names, but none that hides a built-in; a class no behaviour. jaxlib's own classes grow.
            if size(now) != sizes[place] and name[:7] != "jaxlib.":
                for key in set_(now).difference(keys):
                    if (key in built_in or place >= ours) and counts(now[key]) and key not in quiet:
                        return f"{name}.{key}"
        if not every(pairs(same, pairs(kind_of, modules), module_kinds)):
            return "the class of a module"
        if near:
            return ""
        if not every(pairs(same, pairs(order_of, kinds), orders)):
            return "the bases of a class"
        if not every(pairs(same, pairs(content_of, cells), contents)):
            return "what a function closes over"
        return "" if every(pairs(same, pairs(code_of, functions), codes)) else "the code of a function"

    def knows(value: object) -> bool:
        return identity(value) in identities

    enumerate_, next_, zip_, set_, identity = enumerate, next, zip, set, id
    nearest = [_is_near(name) for name, *_ in tables]
    identities = frozenset(id(value) for *_, values in tables for value in values)
    return changed, knows


def _table(name: str, now: Mapping[str, object], counts: Callable[[object], bool]) -> tuple:
    keys = tuple(key for key, value in now.items() if counts(value) and f"{name}.{key}" not in _EXEMPT)
    return name, now, keys, tuple(now[key] for key in keys)


def _is_near(table: str) -> bool:
    if table.split(".")[0] in ("course_lib", "builtins") or table in "numpy tensorflow keras jax jax.numpy".split():
        return True
    return table.endswith(("Tensor", "Variable", "Array", "ArrayImpl", "Strategy", "StrategyBase", "StrategyV1"))


def _is_ours(table: str, value: object) -> bool:
    return table.split(".")[0] == "course_lib" and isinstance(value, FunctionType)


def _is_anything(value: object) -> bool:
    return True


_ORDER_OF, _NAMES_OF = type.__dict__["__mro__"].__get__, type.__dict__["__dict__"].__get__


def _is_descriptor(value: object, order_of=_ORDER_OF, names_of=_NAMES_OF, kind=type, can_call=callable) -> bool:
    """Asked of the classes' own tables: `hasattr` would run what a learner's metaclass says."""
    for one in order_of(kind(value)):
        if "__get__" in names_of(one):
            return True
    return can_call(value)


def _closed_over(value: object) -> Iterator[object]:
    """The cells of a function that hold another function; a counter in one may change."""
    for cell in (value.__closure__ or ()) if isinstance(value, FunctionType) else ():
        try:
            if callable(cell.cell_contents):
                yield cell
        except ValueError:  # still empty
            continue
