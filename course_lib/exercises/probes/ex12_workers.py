"""What a worker's process gives exercise 12's programs, and sees of them: its own rows, and traces.

Needs TensorFlow; runs in the worker's own process, around the program.
"""

from collections import Counter
from collections.abc import Callable

PRODUCTS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Mul", "Einsum"}
PRODUCTS |= {"PartitionedCall", "StatefulPartitionedCall"}  # of another traced function


def watched(program: Callable, task, shards, **arguments) -> dict[str, object]:
    """The program's result, and what does not rest on its word. It is given its own shard alone.

    Returns  "result"
             "traces"   of the function that was traced most often, by name, wherever the program made it; one that
                        multiplies nothing, such as a sum over the workers alone, is no step
    """
    from tensorflow.python.framework import func_graph

    traced, make = [], func_graph.FuncGraph.__init__

    def noted(self, name, *args, **kwargs):
        if _eager():  # else a part of another function's trace, such as a branch
            traced.append((name, self))
        return make(self, name, *args, **kwargs)

    func_graph.FuncGraph.__init__ = noted
    own = [shard if worker == task.index else None for worker, shard in enumerate(shards)]
    result = program(task, shards=own, **arguments)
    counts = Counter(name for name, graph in traced if any(op.type in PRODUCTS for op in graph.get_operations()))
    return {"result": result, "traces": max(counts.values(), default=0)}


def _eager() -> bool:
    import tensorflow as tf

    return tf.executing_eagerly()
