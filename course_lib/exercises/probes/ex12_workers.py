"""What a worker's process gives exercise 12's programs, and sees of them: its own rows, and traces.

Needs TensorFlow; runs in the worker's own process, around the program.
"""

from collections import Counter
from collections.abc import Callable

PRODUCTS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Mul", "Einsum"}
OTHER_GRAPHS = {"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile"}


def watched(program: Callable, task, shards, **arguments) -> dict[str, object]:
    """The program's result, and what does not rest on its word. It is given its own shard alone.

    Returns  "result"
             "traces"   of the function that was traced most often, by name, wherever the program made it; one that
                        multiplies no matrix, such as a sum over the workers or an update alone, is no step
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
    counts = Counter(name for name, graph in traced if any(map(_multiplies, graph.get_operations())))
    return {"result": result, "traces": max(counts.values(), default=0)}


def _multiplies(op) -> bool:
    """Whether it is a product with a matrix, as rows are, or holds a graph of its own, which may have one."""
    ranks = [tensor.shape.rank for tensor in op.inputs]
    return op.type in OTHER_GRAPHS or op.type in PRODUCTS and any(rank is None or rank > 1 for rank in ranks)


def _eager() -> bool:
    import tensorflow as tf

    return tf.executing_eagerly()
