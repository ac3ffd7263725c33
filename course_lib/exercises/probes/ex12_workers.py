"""What a worker's process gives exercise 12's programs, and sees of them: its own rows, and traces.

Needs TensorFlow; runs in the worker's own process, around the program.
"""

from collections import Counter
from collections.abc import Callable


def watched(program: Callable, task, shards, **arguments) -> dict[str, object]:
    """The program's result, and what does not rest on its word. It is given its own shard alone.

    Returns  "result"
             "traces"   of the function that was traced most often, by name, wherever the program made it
    """
    from tensorflow.python.framework import func_graph

    traced, make = Counter(), func_graph.FuncGraph.__init__

    def noted(self, name, *args, **kwargs):
        if _eager():  # else a part of another function's trace, such as a branch
            traced[name] += 1
        return make(self, name, *args, **kwargs)

    func_graph.FuncGraph.__init__ = noted
    own = [shard if worker == task.index else None for worker, shard in enumerate(shards)]
    result = program(task, shards=own, **arguments)
    return {"result": result, "traces": max(traced.values(), default=0)}


def _eager() -> bool:
    import tensorflow as tf

    return tf.executing_eagerly()
