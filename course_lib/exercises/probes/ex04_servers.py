"""What a coordinator's process sees of a learner's program: tables on servers, updates counted, steps scheduled, saves.

Needs TensorFlow and Keras; runs in the coordinator's own process, beside the program.
"""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np

WRITES = ("assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_update", "scatter_nd_add")
WRITES += ("scatter_nd_sub", "scatter_nd_update", "batch_scatter_update")
READS = ("sparse_read", "gather_nd", "_read_variable_op")


def watched(program: Callable, task, **arguments) -> dict[str, object]:
    """The program's result, and what does not rest on its word. Each report says as much of "at_once" as there was, and
    how many "new_bytes" the task's folder has since the report before, at first since the first step was scheduled.

    Returns  "result"
             "shards"       every float table of rank 2 that was made on a server: ["ps 0", its rows as nested lists]
             "after_steps"  the same, when the last steps had been waited for; None where none had
             "writes"       into such a table after the first step was scheduled, by something else than steps: it has
                            changed while no step was under way; the program wrote; or somebody assigned it whole
             "counted"      by each optimizer of Keras that was built
             "scheduled"    how many steps were
             "at_once"      the most of them that were not yet waited for
             "reads"        of such a table's rows in steps, as often as they were traced
             "sent"         steps that were sent more numbers than two for each visit, besides rows' numbers and values
    """
    import keras
    import tensorflow as tf

    made, optimizers, under_way, after_steps = [], [], set(), None
    steps, at_once, coordinator = 0, 0, tf.distribute.coordinator.ClusterCoordinator
    make, report = keras.optimizers.Optimizer.__init__, type(task).report
    schedule, join, done = coordinator.schedule, coordinator.join, coordinator.done
    writes, files, program_thread = 0, _files(task.folder), threading.get_ident()
    reads, sent, looking, values_of = 0, 0, threading.local(), [values for _, values in arguments["batches"]]
    visits, known = len(values_of[0]), np.float32(sum(values_of, []))

    def noted(next_creator, **kwargs):
        made.append(next_creator(**kwargs))
        if _is_table(made[-1]):
            made[-1].assign = _then(made[-1].assign, written)
            for name in WRITES:
                setattr(made[-1], name, _then(getattr(made[-1], name), written_by_program))
            for name in READS:
                setattr(made[-1], name, _then(getattr(made[-1], name), read))
        return made[-1]

    def read():
        nonlocal reads
        in_step = not tf.executing_eagerly() or threading.get_ident() != program_thread
        reads += in_step and not getattr(looking, "on", False)

    def written():
        nonlocal writes
        writes += steps > 0

    def written_by_program():
        if tf.executing_eagerly() and threading.get_ident() == program_thread:
            written()

    def changed_when_idle():
        return not under_way and after_steps not in (None, shards())

    def made_optimizer(optimizer, *args, **kwargs):
        optimizers.append(optimizer)
        return make(optimizer, *args, **kwargs)

    def shards():
        looking.on = True
        try:
            return [[_server(one), one.numpy().tolist()] for one in made if _is_table(one)]
        finally:
            looking.on = False

    def waited_for(*values):
        nonlocal after_steps
        had_any = bool(under_way)
        under_way.difference_update(values or tuple(under_way))
        if had_any and not under_way:
            after_steps = shards()

    def scheduled(self, *args, **kwargs):
        nonlocal steps, at_once, writes, files, sent
        writes += changed_when_idle()
        sent += _others(tf.nest.flatten((args, kwargs)), known) > 2 * visits
        files = files if steps else _files(task.folder)
        value = schedule(self, *args, **kwargs)
        under_way.add(id(value))
        steps, at_once = steps + 1, max(at_once, len(under_way))
        for wait in ("fetch", "get"):
            setattr(value, wait, _then(getattr(value, wait), lambda: waited_for(id(value))))
        return value

    def all_done(self):
        if said := done(self):
            waited_for()
        return said

    def counting(task, **values):
        nonlocal files
        before, files = files, _files(task.folder)
        new = sum(size for file, (size, when) in files.items() if before.get(file) != (size, when))
        report(task, **values, at_once=at_once, new_bytes=new)

    keras.optimizers.Optimizer.__init__ = made_optimizer
    coordinator.schedule, coordinator.join = scheduled, lambda self: _then(join, waited_for)(self)
    coordinator.done = all_done
    with tf.variable_creator_scope(noted), mock.patch.object(type(task), "report", counting):
        result = program(task, **arguments)
    return {
        "result": result,
        "shards": shards(),
        "after_steps": after_steps,
        "writes": writes + changed_when_idle(),
        "counted": [int(optimizer.iterations.numpy()) for optimizer in optimizers if optimizer.built],
        "scheduled": steps,
        "at_once": at_once,
        "reads": reads,
        "sent": sent,
    }


def _others(sent: list, known: np.ndarray) -> int:
    """How many of the numbers in a step's arguments are neither whole nor a value of a visit."""
    found = 0
    for one in sent:
        if isinstance(one, (float, np.ndarray, np.floating)) or hasattr(one, "numpy") and hasattr(one, "dtype"):
            numbers = np.asarray(one)
            if numbers.dtype.kind == "f":
                found += int(((numbers % 1 != 0) & ~np.isin(np.abs(numbers).astype("float32"), known)).sum())
    return found


def _is_table(variable) -> bool:
    return "/job:ps" in variable.device and variable.dtype.is_floating and variable.shape.rank == 2


def _server(variable) -> str:
    import tensorflow as tf

    return f"ps {tf.DeviceSpec.from_string(variable.device).task}"


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    """The size of each file, and when it was written."""
    found = {}
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a program may remove its files at any time
            if file.is_file():
                found[file] = file.stat().st_size, file.stat().st_mtime_ns
    return found


def _then(wait: Callable, after: Callable[[], None]) -> Callable:
    def waited(*args, **kwargs):
        result = wait(*args, **kwargs)
        after()
        return result

    return waited
