"""What a coordinator's process sees of a learner's program: tables on servers, updates counted, steps scheduled.

Needs TensorFlow and Keras; runs in the coordinator's own process, beside the program.
"""

from collections.abc import Callable
from unittest import mock


def watched(program: Callable, task, **arguments) -> dict[str, object]:
    """The program's result, and what does not rest on its word. Each report says as much of "at_once" as there was.

    Returns  "result"
             "shards"       every float table of rank 2 that was made on a server: ["ps 0", its rows as nested lists]
             "after_steps"  the same, when the last steps had been waited for; None where none had
             "counted"      by each optimizer of Keras that was built
             "scheduled"    how many steps were
             "at_once"      the most of them that were not yet waited for
    """
    import keras
    import tensorflow as tf

    made, optimizers, under_way, after_steps = [], [], set(), None
    steps, at_once, coordinator = 0, 0, tf.distribute.coordinator.ClusterCoordinator
    make, report = keras.optimizers.Optimizer.__init__, type(task).report
    schedule, join, done = coordinator.schedule, coordinator.join, coordinator.done

    def noted(next_creator, **kwargs):
        made.append(next_creator(**kwargs))
        return made[-1]

    def made_optimizer(optimizer, *args, **kwargs):
        optimizers.append(optimizer)
        return make(optimizer, *args, **kwargs)

    def shards():
        return [[_server(one), one.numpy().tolist()] for one in made if _is_table(one)]

    def waited_for(*values):
        nonlocal after_steps
        had_any = bool(under_way)
        under_way.difference_update(values or tuple(under_way))
        if had_any and not under_way:
            after_steps = shards()

    def scheduled(self, *args, **kwargs):
        nonlocal steps, at_once
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
        report(task, **values, at_once=at_once)

    keras.optimizers.Optimizer.__init__ = made_optimizer
    coordinator.schedule, coordinator.join = scheduled, lambda self: _then(join, waited_for)(self)
    coordinator.done = all_done
    with tf.variable_creator_scope(noted), mock.patch.object(type(task), "report", counting):
        result = program(task, **arguments)
    return {
        "result": result,
        "shards": shards(),
        "after_steps": after_steps,
        "counted": [int(optimizer.iterations.numpy()) for optimizer in optimizers if optimizer.built],
        "scheduled": steps,
        "at_once": at_once,
    }


def _is_table(variable) -> bool:
    return "/job:ps" in variable.device and variable.dtype.is_floating and variable.shape.rank == 2


def _server(variable) -> str:
    import tensorflow as tf

    return f"ps {tf.DeviceSpec.from_string(variable.device).task}"


def _then(wait: Callable, after: Callable[[], None]) -> Callable:
    def waited(*args, **kwargs):
        result = wait(*args, **kwargs)
        after()
        return result

    return waited
