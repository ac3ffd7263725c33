"""What a worker's process sees of exercise 03's programs, around them. Needs NumPy, and Keras on TensorFlow."""

import time
from collections.abc import Callable
from unittest import mock

import numpy as np

from course_lib.exercises.probes.counted_updates import counted_updates

COUNTED = "counted"  # a file among the job's shared ones: what this program sent has been counted


def until_counted(program: Callable, task, **arguments) -> dict[str, object]:
    """The program's result. Its connections stay open until somebody outside has counted what they sent."""
    result = program(task, **arguments)
    task.report(through=True)
    while not (task.folder / COUNTED).exists():
        time.sleep(0.01)
    return {"result": result}


def among_others(program: Callable, task, own_targets, x, y, **arguments) -> dict[str, object]:
    """The program's result where every row whose target is none of this worker's holds other numbers.

    own_targets  of each worker
    """
    x, y = np.array(x, "float64"), np.array(y, "float64")
    others = ~np.isin(np.float32(y), np.float32(own_targets[task.index]))
    x[others], y[others] = 1 - 2 * x[others], 3 - y[others]
    return {"result": program(task, x=x.tolist(), y=y.tolist(), **arguments)}


def counted(program: Callable, task, **arguments) -> dict[str, object]:
    """The program's result and its optimizers' counts; each report says how many updates this process had made.

    Returns  "result"
             "counts"  each optimizer's own number of updates at the end
    """
    import keras

    made, begin, report = [], keras.optimizers.Optimizer.__init__, type(task).report

    def kept(optimizer, *args, **kwargs):
        made.append(optimizer)
        begin(optimizer, *args, **kwargs)

    def counting(task, **values):
        report(task, **values, updates_made=updates())

    with (
        mock.patch.object(keras.optimizers.Optimizer, "__init__", kept),
        counted_updates() as updates,
        mock.patch.object(type(task), "report", counting),
    ):
        result = program(task, **arguments)
    return {"result": result, "counts": [int(optimizer.iterations.numpy()) for optimizer in made]}
