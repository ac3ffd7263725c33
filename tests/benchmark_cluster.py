"""What a local cluster costs and gains, as ratios of medians measured in one run: `python tests/benchmark_cluster.py`.

Start: two workers from `cluster.start` to their first all-reduce, against one bare process that imports TensorFlow
and does one step. At most 1.5. Both do what one process needs by itself; two processes import TensorFlow at
once, so the machine needs two free cores.

Weak scaling: samples per second of two workers with one core each against one worker with one core, with the
same local batch, so that each worker's compute is the same and the global batch doubles. At least 1.7.
"""

import argparse
import statistics
import subprocess
import sys
import time

from course_lib import cluster

ONE_PROCESS = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
weights = tf.Variable([1.0, 2.0])
tf.function(lambda: weights.assign_sub(0.1 * weights))()
"""


def first_all_reduce(task):
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weights = tf.Variable([1.0, 2.0])

    def step():
        gradient = tf.distribute.get_replica_context().all_reduce("SUM", 0.1 * weights)
        return tf.identity(gradient)

    tf.function(lambda: strategy.run(step))()
    task.report(reduced=1)


def train_cnn(task, local_batch, warm_up, steps):
    """Train on one batch; return the seconds of each step."""
    import time

    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    from course_lib import models, training

    strategy = tf.distribute.MultiWorkerMirroredStrategy() if task.workers > 1 else tf.distribute.get_strategy()
    with strategy.scope():
        model, optimizer = models.cnn((28, 28, 1), 10), keras.optimizers.SGD(0.01)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    step = training.replicated_step(strategy, model, optimizer, loss)
    x = tf.random.stateless_uniform((local_batch, 28, 28, 1), (0, task.index))
    y = tf.random.stateless_uniform((local_batch,), (1, task.index), maxval=10, dtype=tf.int64)
    batch = next(iter(strategy.distribute_datasets_from_function(lambda context: tf.data.Dataset.from_tensors((x, y)))))
    seconds = []
    for _ in range(warm_up + steps):
        began = time.perf_counter()
        float(step(batch))
        seconds.append(time.perf_counter() - began)
    return seconds[warm_up:]


def cluster_seconds() -> float:
    began = time.perf_counter()
    with cluster.start(cluster.Job(first_all_reduce, workers=2), show=None) as running:
        for task in running.job.tasks:
            running.wait_report(task, reduced=1)
        return time.perf_counter() - began


def process_seconds() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", ONE_PROCESS], check=True, capture_output=True)
    return time.perf_counter() - began


def step_seconds(workers: int, chosen: argparse.Namespace) -> float:
    arguments = {"local_batch": chosen.local_batch, "warm_up": 5, "steps": chosen.steps}
    job = cluster.Job(train_cnn, workers=workers, arguments=arguments, resources=cluster.Resources(cpus=1))
    return statistics.median(cluster.run(job, show=None).result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="of each measurement, in turns")
    parser.add_argument("--local-batch", type=int, default=1024, help="rows per worker and step")
    parser.add_argument("--steps", type=int, default=15, help="measured steps of a run")
    chosen = parser.parse_args()
    starts = [(cluster_seconds(), process_seconds()) for _ in range(chosen.repeats)]
    together, alone = map(statistics.median, zip(*starts))
    print(
        f"start to first all-reduce: {together / alone:.2f} times one bare process "
        f"(at most 1.5; median of {chosen.repeats} pairs)"
    )
    steps = [(step_seconds(2, chosen), step_seconds(1, chosen)) for _ in range(chosen.repeats)]
    two, one = map(statistics.median, zip(*steps))
    print(
        f"weak scaling, {chosen.local_batch} rows per worker: "
        f"two workers reach {2 * one / two:.2f} times the samples per second "
        f"of one (at least 1.7; median of {chosen.repeats} pairs of medians of {chosen.steps} steps)"
    )


if __name__ == "__main__":
    main()
