"""Where TensorFlow really ran the operations of a step. Needs TensorFlow; taught in notebooks/06."""

import uuid
from collections.abc import Callable
from functools import partial

import tensorflow as tf
from tensorflow.python.eager import context  # no public call returns a tf.function's partitions


def where_it_ran(step: Callable, *arguments, kind: str = "MatMul") -> list[tuple[str, str]]:
    """Run a step once and read the graphs that TensorFlow made of it, one per device.

    step     a function of tensors, which is traced as a tf.function
    kind     the operation's type, such as "MatMul" or "Conv2D"
    Returns  (operation's name, device as "CPU:1") of every such operation, sorted;
             names and number are those after TensorFlow's own optimizations
    """
    mark = f"step-{uuid.uuid4().hex}"  # TensorFlow reports earlier functions as well

    def marked(*arguments):
        with tf.name_scope(mark):
            return step(*arguments)

    # A partial has no code object: TensorFlow would count all calls of `marked` as one function's traces, and warn.
    traced = tf.function(partial(marked))

    running = context.context()
    running.enable_run_metadata()
    try:
        traced(*arguments)  # a graph is reported once, when the first call makes it
        metadata = running.export_run_metadata()
    finally:
        running.disable_run_metadata()
    nodes = [node for run in metadata.function_graphs for graph in run.partition_graphs for node in graph.node]
    ours = (node for node in nodes if mark in node.name and node.op.endswith(kind))
    found = {(node.name.rpartition("PartitionedCall/")[2].replace(f"{mark}/", ""), short(node.device)) for node in ours}
    return sorted(found)


def short(device: str) -> str:
    """TensorFlow's "/job:localhost/replica:0/task:0/device:CPU:1" as "CPU:1"."""
    return device.rpartition("device:")[2]
