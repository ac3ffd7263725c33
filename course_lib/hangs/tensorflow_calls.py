"""A light hook into TensorFlow: which calls of a process enter which collectives.

TensorFlow has no such hook of its own. Three of its functions are wrapped: the one that runs a traced function, those
that run a collective by itself, and the one that joins a cluster. They are private; tests/test_hangs.py fails on both
stacks where they are gone.
"""

import functools
from collections.abc import Callable, Iterator

from course_lib.hangs.recorder import Recorder, call_name, encoded

_recorder: list[Recorder] = []  # of this process: one, or none
_NOTE = "_course_note"  # on a traced function: its text, and whether it holds collectives


def record_calls(recorder: Recorder) -> None:
    """From now on note every call of this process."""
    if not _recorder:
        _wrap()
    _recorder[:] = [recorder]


def _wrap() -> None:
    from tensorflow.python.eager import context
    from tensorflow.python.eager.polymorphic_function import atomic_function
    from tensorflow.python.ops import gen_collective_ops

    kind = atomic_function.AtomicFunction
    kind.call_flat = _of_function(kind.call_flat, context.executing_eagerly)
    for name in dir(gen_collective_ops):
        if name.startswith("collective_") and not name.endswith(("_eager_fallback", "assign_group_v2")):
            wrapped = _of_collective(getattr(gen_collective_ops, name), name, context.executing_eagerly)
            setattr(gen_collective_ops, name, wrapped)
    context.Context.enable_collective_ops = _of_joining(context.Context.enable_collective_ops)


def _of_function(call: Callable, eager: Callable[[], bool]) -> Callable:
    @functools.wraps(call)
    def noted(self, *inputs):
        if not eager():  # another function is being traced
            return call(self, *inputs)
        note = self.__dict__.get(_NOTE)
        if note is None:
            note = self.__dict__[_NOTE] = _note(self)
        number = _recorder[0].enter(*note)
        try:
            return call(self, *inputs)
        finally:
            _recorder[0].leave(number)

    return noted


def _note(function) -> tuple[bytes, bool]:
    collectives = list(_collectives(function.graph, set()))
    name = call_name(function.name.decode() if isinstance(function.name, bytes) else function.name)
    return encoded(name, _counted(collectives)), bool(collectives)


def _collectives(graph, seen: set[str]) -> Iterator[str]:
    """The collectives of a graph and of all that it calls, in the order in which they were made."""
    for operation in graph.get_operations():
        if operation.type.startswith("Collective") and operation.type != "CollectiveAssignGroupV2":
            yield _described(operation.type, operation.outputs or operation.inputs)
        for key in operation.node_def.attr:
            value = operation.node_def.attr[key]
            for name in [value.func.name, *(function.name for function in value.list.func)]:
                if name and name not in seen and (called := graph._get_function(name)) is not None:
                    seen.add(name)
                    yield from _collectives(called.graph, seen)


def _of_collective(call: Callable, function: str, eager: Callable[[], bool]) -> Callable:
    name = "".join(map(str.capitalize, function.split("_")))
    kind = "CollectiveBcast" if "Bcast" in name else name  # one sends, the others receive

    @functools.wraps(call)
    def noted(*inputs, **options):
        if not eager():
            return call(*inputs, **options)
        values = [value for value in [*inputs, *options.values()] if hasattr(value, "shape")]
        number = _recorder[0].enter(encoded("eager", [_described(kind, values[:1] if kind == name else [])]), True)
        try:
            return call(*inputs, **options)
        finally:
            _recorder[0].leave(number)

    return noted


def _of_joining(call: Callable) -> Callable:
    @functools.wraps(call)
    def noted(self, server):
        _recorder[0].join(encoded(cluster_of(server), []))
        return call(self, server)

    return noted


def cluster_of(server) -> str:
    """Who a process says that it is, and whom it waits for: "worker 0 of worker: a:1 b:2"."""
    jobs = {job.name: [job.tasks[k] for k in sorted(job.tasks)] for job in server.cluster.job}
    named = "; ".join(f"{name}: {' '.join(addresses)}" for name, addresses in sorted(jobs.items()))
    return f"{server.job_name} {server.task_index} of {named}"


def _described(kind: str, tensors) -> str:
    if not len(tensors) or not hasattr(tensors[0], "dtype"):
        return kind
    shape = tensors[0].shape
    size = "?" if shape.rank is None else ",".join("?" if n is None else str(n) for n in shape)
    return f"{kind} {tensors[0].dtype.name}[{size}]"


def _counted(texts: list[str]) -> list[str]:
    """Equal neighbours once, with their number."""
    runs: list[list] = []
    for text in texts:
        if runs and runs[-1][0] == text:
            runs[-1][1] += 1
        else:
            runs.append([text, 1])
    return [text if count == 1 else f"{count} x {text}" for text, count in runs]
