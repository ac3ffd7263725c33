"""What happens to trained weights while a learner's code trains, by whatever way. Needs TensorFlow."""

import contextlib
import functools
import threading
from collections.abc import Iterator
from unittest import mock

MOST_WEIGHTS = 4096  # whose updates are counted
_WRITES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter")  # how such operations' names begin


class Watched:
    """Updates of weights, and which replicas add something to sums. The graphs that train keep the numbers themselves.

    An update is the first writing of a weight after a gradient of it: decay, constraints and averages that follow,
    and weights that are read from a file, add none. The copy of the first replica counts for all.
    """

    def __init__(self, devices):
        import tensorflow as tf

        self._slots, self._groups, self._fresh, self._kept, self._lock = {}, [], set(), [], threading.RLock()
        with tf.device(devices[0]):
            self._writings = tf.Variable(tf.zeros(MOST_WEIGHTS, tf.float64), trainable=False)
        self._not_zero = [_counter(device) for device in devices]  # a replica's sums with other numbers than 0

    def updates(self, variables) -> int:
        """Of all weights that were trained together, the most of one; the sum of such groups.

        variables  of the model that came back, which are one group; elsewhere a single variable is no model's weight
        """
        counts, copies = self._writings.numpy(), map(_first_copy, variables)
        own = {self._slots.get(id(copy.handle)) for copy in copies if copy is not None}
        groups = _merged([*self._groups, own - {None}])
        return int(sum(max(counts[slot] for slot in group) for group in groups if len(group) > 1 or group & own))

    def idle_replicas(self) -> int:
        """Replicas that add nothing but zeros to what is summed over all of them, while others add more."""
        times = [int(counter.numpy()) for counter in self._not_zero]
        return times.count(0) if any(times) else 0

    def note_gradient(self, sources) -> None:
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        replica = context.replica_id_in_sync_group if context else 0
        if (replica if isinstance(replica, int) else tf.get_static_value(replica)) == 0:
            self._note_sources(tf.nest.flatten(sources))

    def note_sums(self, values) -> None:
        """Called with values that are reduced together, each a list of what the replicas have; single numbers,
        such as a loss, don't count.
        """
        import tensorflow as tf

        kinds = (tf.Tensor, tf.IndexedSlices)
        values = [
            parts
            for parts in values
            if len(parts) == len(self._not_zero) and all(isinstance(one, kinds) and _is_array(one) for one in parts)
        ]
        for replica, parts in enumerate(zip(*values)):
            counter = self._not_zero[replica]
            with tf.device(counter.device):
                found = [tf.reduce_any(tf.not_equal(getattr(part, "values", part), 0)) for part in parts]
                one = tf.cast(tf.reduce_any(tf.stack(found)), tf.float64)
                tf.raw_ops.AssignAddVariableOp(resource=counter.handle, value=one)

    def _note_sources(self, sources) -> None:
        with self._lock:
            group = set()
            for handle in (copy.handle for copy in map(_first_copy, sources) if copy is not None):
                if id(handle) not in self._slots and len(self._slots) < MOST_WEIGHTS:
                    self._kept.append(handle)  # so that no other one gets its id
                    self._slots[id(handle)] = len(self._slots)
                if slot := {self._slots[id(handle)]} if id(handle) in self._slots else set():
                    group |= slot
                    self._fresh |= slot
            if group and group not in self._groups:
                self._groups.append(group)

    def note_operation(self, kind, inputs, attributes, outputs, op_name=None, graph=None) -> None:
        """Called with each operation as it runs, or enters a graph."""
        name = kind.decode() if isinstance(kind, bytes) else kind
        if not name.startswith(_WRITES) or not inputs:
            return
        with self._lock:
            slot = self._slots.get(id(_outermost(inputs[0], graph)))
            if slot is None or slot not in self._fresh:
                return
            self._fresh.discard(slot)
        import tensorflow as tf

        with tf.device(self._writings.device):
            one = tf.constant(1, tf.float64)
            tf.raw_ops.ResourceScatterAdd(resource=self._writings.handle, indices=[slot], updates=[one])


@contextlib.contextmanager
def watched_training(strategy) -> Iterator[Watched]:
    """Watch what the block does on the strategy's replicas."""
    import tensorflow as tf
    from tensorflow.python.eager import context
    from tensorflow.python.framework import op_callbacks

    watched = Watched(strategy.extended.worker_devices)
    gradient = tf.GradientTape.gradient

    @tf.autograph.experimental.do_not_convert
    def noting(tape, target, sources, *args, **kwargs):
        found = gradient(tape, target, sources, *args, **kwargs)
        watched.note_gradient(sources)
        return found

    note = watched.note_operation
    op_callbacks.add_op_callback(note)
    try:
        with mock.patch.object(tf.GradientTape, "gradient", noting), summed_values(strategy, watched.note_sums):
            yield watched
    finally:
        if note in context.context().op_callbacks:
            op_callbacks.remove_op_callback(note)


@contextlib.contextmanager
def summed_values(strategy, note) -> Iterator[None]:
    """Note what the replicas have of values that are reduced over them, as that runs or enters a graph."""
    extended, local = strategy.extended, functools.partial(type(strategy).experimental_local_results, strategy)
    reduce_to, batch_reduce_to = extended.reduce_to, extended.batch_reduce_to

    def noting(operation, value, *args, **kwargs):
        note([local(value)])
        return reduce_to(operation, value, *args, **kwargs)

    def noting_all(operation, pairs, *args, **kwargs):
        note([local(value) for value, _ in pairs])
        return batch_reduce_to(operation, pairs, *args, **kwargs)

    extended.reduce_to, extended.batch_reduce_to = noting, noting_all
    try:
        yield
    finally:
        del extended.reduce_to, extended.batch_reduce_to  # the class's own show again


def _counter(device: str):
    import tensorflow as tf

    with tf.device(device):
        return tf.Variable(tf.constant(0, tf.float64), trainable=False)


def _is_array(part) -> bool:
    return part.dtype.is_floating and part.shape.num_elements() != 1


def _first_copy(variable):
    """The first replica's copy of a weight, Keras' or TensorFlow's; None for what is no variable."""
    held = getattr(variable, "value", variable)
    held = variable if callable(held) else held  # a method of TensorFlow's variables
    container = getattr(held, "_distributed_container", None)
    whole = container() if container else None  # of which this is one copy
    held = held if whole is None else whole
    copies = getattr(held, "values", None)
    held = copies[0] if isinstance(copies, (list, tuple)) and copies else held
    return held if hasattr(held, "handle") and getattr(held, "trainable", False) else None


def _outermost(tensor, graph):
    """What a tensor is outside of the graphs that have captured it."""
    while graph is not None and hasattr(graph, "captures"):
        outside = next((outer for outer, inner in graph.captures if inner is tensor), None)
        if outside is None:
            break
        tensor, graph = outside, graph.outer_graph
    return tensor


def _merged(groups) -> list[set]:
    """Sets that have members in common, made one."""
    found = []
    for group in filter(None, map(set, groups)):
        others = [other for other in found if other & group]
        found = [other for other in found if not other & group] + [group.union(*others)]
    return found
