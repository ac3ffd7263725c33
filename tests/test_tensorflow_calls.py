"""The hook into TensorFlow's calls, on the stack that is installed: it wraps private functions."""

import inspect

import pytest
from conftest import HAS_TENSORFLOW

from course_lib import cluster
from course_lib.cluster.worker_program import WorkerProgram


def recorded(task):
    """Three sums over all replicas in one traced step, inside another, then one sum by itself."""
    import tensorflow as tf

    from course_lib.hangs import recorder

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weights = tf.Variable(tf.zeros([5]))
        seen = tf.Variable(
            0.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
        )

    @tf.function
    def inner():
        def sums():
            context = tf.distribute.get_replica_context()
            return [context.all_reduce("SUM", [weights * 2.0]) for _ in range(3)]

        return strategy.run(sums)

    @tf.function
    def outer():
        return inner()

    outer()
    outer()
    float(seen.read_value())
    tf.function(lambda: weights + 1.0)()
    record = recorder.read(recorder.path_of(task.folder.parent, task.name))
    return [one.text for one in record.collectives if not one.text.startswith("eager: CollectiveBcast")], record.cluster


@pytest.mark.skipif(not HAS_TENSORFLOW, reason="a stack without TensorFlow")
def test_tensorflows_calls_are_noted_with_their_collectives():
    """Fails where the private functions that are wrapped have gone, or are called no longer."""
    # As text: this module would bring TensorFlow's devices.
    program = WorkerProgram("recorded", text=inspect.getsource(recorded))
    job = cluster.Job(program, hang_seconds=60, resources=cluster.Resources(memory_gib=0.3, limit_seconds=120))
    with cluster.start(job, show=None) as running:
        addresses = list(running.addresses.values())
        results = running.outcome().results
    for place, (texts, says) in enumerate(results.values()):
        step = "outer: 3 x CollectiveReduceV2 float32[5]"
        assert texts == [step, step, "eager: CollectiveReduceV2 float32[]"]
        assert says == f"worker {place} of worker: {' '.join(addresses)}"
