"""What a worker's process gives exercise 12's programs, and sees of them: its own rows, and traces.

Needs TensorFlow; runs in the worker's own process, around the program.
"""

import functools
import itertools
import time
from collections import Counter
from collections.abc import Callable

PRODUCTS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Mul", "Einsum"}
OTHER_GRAPHS = {"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile"}
GRADIENTS_OF_BRANCHES = {"_CondGradFuncGraph", "_WhileBodyGradFuncGraph"}  # take nothing in but what they differentiate
WEIGHTS = 3  # no batch has so many rows
PATIENCE = 8  # seconds for which a worker that is through waits for the others, before it leaves them alone


def watched(program: Callable, task, cases) -> dict[str, object]:
    """Run the program on each case in turn. Each time it is given its own shard alone.

    A worker that is through while another one stands still returns, as the program did.

    Returns  "result"  None where the program returned nothing
             "runs"    for each case a dict, of which the last two do not rest on the program's word:
                       "result"
                       "traces"    of the function that was traced most often, by name, wherever the program made it;
                                   one that multiplies no rows, such as a sum over the workers or an update alone, is
                                   no step
                       "products"  with rows, in all graphs that were traced, whatever function is around them
                       "run"       of these products, each time that its graph runs
                       "calls"     that entered collectives
    """
    import tensorflow as tf
    from tensorflow.python.framework import func_graph

    from course_lib.hangs import recorder

    traced, make = [], func_graph.FuncGraph.__init__

    def noted(self, name, *args, **kwargs):
        traced.append((name, self, _eager()))  # not eager: a part of another function's trace, such as a branch
        return make(self, name, *args, **kwargs)

    func_graph.FuncGraph.__init__ = noted
    in_graphs = _RunInGraphs()
    _clear_groups_together(task)
    runs = []
    for number, arguments in enumerate(cases):
        own = [shard if worker == task.index else None for worker, shard in enumerate(arguments["shards"])]
        traced.clear()
        in_graphs.begin(number)
        tf.config.run_functions_eagerly(False)  # whatever the last run has left
        calls = recorder.collectives()
        result = program(task, **{**arguments, "shards": own})
        if result is None or result is ...:
            return {"result": None}
        counted = {"run": in_graphs.products(), "calls": recorder.collectives() - calls}
        runs.append({"result": result, **_counted(traced), **counted})
        if not _all_through(task, number):
            break
    return {"result": "returned", "runs": runs}


def _all_through(task, number) -> bool:
    """Whether all workers have run this case, too, before patience ends."""
    return _all_reach(task, f"case {number}")


def _clear_groups_together(task) -> None:
    """Let no strategy go on before all workers have made theirs.

    A process's second strategy clears the groups of workers of its first. A worker that went on at once would meet
    another one's old groups, which are then cleared under it.
    """
    from tensorflow.python.eager import context

    numbers, clear = itertools.count(), context.Context.enable_collective_ops

    def cleared(self, server):
        clear(self, server)
        if number := next(numbers):  # the first time there are no old groups, and the server waits for the others
            _all_reach(task, f"strategy {number}")

    context.Context.enable_collective_ops = cleared


def _all_reach(task, what) -> bool:
    """Whether all workers get here before patience ends."""
    marks = [task.folder / f"{what} on worker {worker}" for worker in range(task.workers)]
    marks[task.index].touch()
    until = time.monotonic() + PATIENCE
    while not (through := all(mark.exists() for mark in marks)) and time.monotonic() < until:
        time.sleep(0.002)
    return through


class _RunInGraphs:
    """Counts the products with rows that traced graphs run, on a counter that each graph adds to."""

    def __init__(self):
        from tensorflow.python.framework import func_graph

        self._counter, make = None, func_graph.func_graph_from_py_func

        def counting(name, python_func, *args, **kwargs):
            @functools.wraps(python_func)
            def then_add(*inputs, **named):
                outputs = python_func(*inputs, **named)
                self._add()
                return outputs

            return make(name, then_add, *args, **kwargs)

        func_graph.func_graph_from_py_func = counting

    def begin(self, number: int) -> None:
        """Count from 0, for the case of this number."""
        self._counter, self._name = None, f"products run in case {number}"

    def products(self) -> int:
        import tensorflow as tf

        return 0 if self._counter is None else int(tf.raw_ops.ReadVariableOp(resource=self._counter, dtype=tf.int64))

    def _add(self) -> None:
        import tensorflow as tf

        graph = tf.compat.v1.get_default_graph()
        if type(graph).__name__ in GRADIENTS_OF_BRANCHES or not (more := sum(map(_multiplies, graph.get_operations()))):
            return
        with tf.init_scope():
            if self._counter is None:  # made here, as no strategy may be made after the first variable
                self._counter = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=self._name)
                tf.raw_ops.AssignVariableOp(resource=self._counter, value=tf.constant(0, tf.int64))
        tf.raw_ops.AssignAddVariableOp(resource=self._counter, value=tf.constant(more, tf.int64))


def _counted(traced) -> dict[str, int]:
    counts = Counter(name for name, graph, first in traced if first and any(map(_holds_rows, graph.get_operations())))
    products = sum(_multiplies(op) for _, graph, _ in traced for op in graph.get_operations())
    return {"traces": max(counts.values(), default=0), "products": products}


def _holds_rows(op) -> bool:
    """Whether it multiplies rows, or holds a graph of its own, which may do so."""
    return op.type in OTHER_GRAPHS or _multiplies(op)


def _multiplies(op) -> bool:
    """Whether it is a product with rows: with a matrix, or with a number of each row."""
    return op.type in PRODUCTS and any(map(_of_rows, op.inputs))


def _of_rows(tensor) -> bool:
    rank = tensor.shape.rank
    return rank is None or rank > 1 or rank == 1 and tensor.shape[0] != WEIGHTS


def _eager() -> bool:
    import tensorflow as tf

    return tf.executing_eagerly()
