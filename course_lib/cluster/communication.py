"""Communication time: predicted from bytes and bandwidth, and measured on limited links; taught in notebooks/03.

The measurements need what `limited_links` needs, and TensorFlow. A ring all-reduce
sends 2(N-1)/N of the buffer per worker, and receives as much meanwhile.

Source: Patarasuk & Yuan (2009), JPDC 69(2).
"""

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from course_lib.cluster import limited_links
from course_lib.cluster.job import Job, Link, Resources
from course_lib.cluster.local import run

WARMUP = 2  # steps that trace, connect and open TCP's window
STORED = Path(__file__).with_name("stored_link_timings.json")  # written by tests/benchmark_network.py --write
LAYER_UNITS, LAYERS, FEATURES, CLASSES = 512, 3, 64, 10  # of the training step's model
ROWS = 1024  # of each worker's batch


@dataclass(frozen=True)
class LinkTiming:
    """A step of N workers on one link: medians of the slowest worker.

    megabits          what the link lets each worker send, 10^6 bits per second
    buffer_bytes      what is summed over the workers
    sent_bytes        frames that a worker sent per step, with all headers and acknowledgements
    compute_seconds   the same step without communication; 0 for a bare all-reduce
    measured_seconds  the whole step
    """

    workers: int
    megabits: float
    buffer_bytes: int
    sent_bytes: float
    compute_seconds: float
    measured_seconds: float

    @property
    def predicted_seconds(self) -> float:
        """Computing, then communicating: nothing overlaps, and latency is left out."""
        return self.compute_seconds + ring_seconds(self.workers, self.buffer_bytes, self.megabits)

    @property
    def ratio(self) -> float:
        """Predicted over measured time."""
        return self.predicted_seconds / self.measured_seconds

    def __str__(self) -> str:
        return (
            f"{self.workers} workers, {self.megabits:g} megabit/s, {self.buffer_bytes / 1e6:.2f} MB: "
            f"sent {self.sent_bytes / 1e6:.2f} MB, compute {self.compute_seconds:.3f} s, "
            f"step {self.measured_seconds:.3f} s, predicted {self.predicted_seconds:.3f} s, ratio {self.ratio:.2f}"
        )


def ring_bytes(workers: int, buffer_bytes: float) -> float:
    """What each worker of a ring all-reduce sends: 2(N-1)/N of the buffer."""
    return 2 * (workers - 1) / workers * buffer_bytes


def ring_seconds(workers: int, buffer_bytes: float, megabits: float) -> float:
    """How long a ring all-reduce takes on links of this rate, which carry 1448 bytes of data in frames of 1514."""
    return ring_bytes(workers, buffer_bytes) * 8 / (megabits * 1e6 * limited_links.PAYLOAD_SHARE)


def measure_all_reduce(
    megabits: Sequence[float] = (50, 100, 200), workers: int = 2, seconds: float = 0.3, repeats: int = 7
) -> list[LinkTiming]:
    """All-reduce one float32 buffer over real workers, at one rate after another.

    seconds  chooses each buffer: what the all-reduce should take by prediction
    Raises   CourseError where links cannot be limited
    """
    sizes = [int(seconds / ring_seconds(workers, 4 * workers, rate)) * workers for rate in megabits]
    return _measure(timed_all_reduces, megabits, workers, {"sizes": sizes, "repeats": repeats})


def measure_training(megabits: Sequence[float] = (50, 100, 200)) -> list[LinkTiming]:
    """Train a Keras model of 0.56 million parameters on two real workers, at one rate after another.

    Raises  CourseError where links cannot be limited
    """
    return _measure(timed_training_steps, megabits, 2, {"repeats": 7})


def stored(name: str) -> tuple[str, list[LinkTiming]]:
    """When and where the stored timings were measured, and the timings, for machines that cannot limit links.

    name  "all-reduce" or "training"
    """
    content = json.loads(STORED.read_text(encoding="utf-8"))
    return content["measured"], [LinkTiming(**timing) for timing in content[name]]


def _measure(program, megabits: Sequence[float], workers: int, arguments: dict) -> list[LinkTiming]:
    resources = Resources(cpus=1, limit_seconds=300)
    arguments = {**arguments, "megabits": list(megabits)}
    outcome = run(Job(program, workers, arguments=arguments, resources=resources, link=Link(megabits[0])), show=None)
    by_rate = zip(*outcome.results.values())
    slowest = [{name: max(row[name] for row in rows) for name in rows[0]} for rows in by_rate]
    return [LinkTiming(workers=workers, megabits=rate, **row) for rate, row in zip(megabits, slowest)]


def timed_all_reduces(task, megabits, sizes, repeats):
    """A worker's program: one row per rate and its buffer's size, in float32 numbers."""
    strategy, rows = ring_strategy(), []
    for rate, size in zip(megabits, sizes):
        all_reduce = all_reduce_step(strategy, size)
        limited_links.limit_rate(Link(rate))
        rows.append({"buffer_bytes": 4 * size, **_time(all_reduce, repeats)})
    return rows


def timed_training_steps(task, megabits, repeats):
    """A worker's program: one row per rate; each training step takes turns with the same step on this worker alone."""
    import keras
    import tensorflow as tf

    from course_lib import training

    strategy = ring_strategy()
    keras.utils.set_random_seed(0)

    def made():
        layers = [keras.layers.Dense(LAYER_UNITS, activation="relu") for _ in range(LAYERS)]
        model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(CLASSES)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        return model, keras.optimizers.SGD(0.01), loss

    x = tf.random.stateless_normal((ROWS, FEATURES), (0, task.index))
    y = tf.random.stateless_uniform((ROWS,), (1, task.index), maxval=CLASSES, dtype=tf.int32)
    alone = training.single_device_step(*made())
    with strategy.scope():
        model, optimizer, loss = made()
    together = training.replicated_step(strategy, model, optimizer, loss)
    timings = []
    for rate in megabits:
        limited_links.limit_rate(Link(rate))
        row = _time(lambda: together((x, y)), repeats, lambda: alone(x, y))
        timings.append({"buffer_bytes": 4 * model.count_params(), **row})
    return timings


def all_reduce_step(strategy, size):
    """A traced step that sums `size` float32 ones over a strategy's replicas."""
    import tensorflow as tf

    buffer = tf.ones(size)

    def replica_sum():
        on_device = tf.identity(buffer)  # all_reduce needs a tensor with a device
        return tf.distribute.get_replica_context().all_reduce("SUM", on_device)

    return tf.function(lambda: strategy.run(replica_sum))


def ring_strategy():
    """The workers of TF_CONFIG, joined, with rings as their collectives."""
    import tensorflow as tf

    options = tf.distribute.experimental
    ring = options.CommunicationOptions(implementation=options.CommunicationImplementation.RING)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)


def _time(step, repeats, compute=lambda: None) -> dict[str, float]:
    """Median seconds of a step and of its computing, in turns; frame bytes sent per step."""

    def seconds(work):
        began = time.perf_counter()
        result = work()
        if result is not None:
            result.numpy()
        return time.perf_counter() - began

    for _ in range(WARMUP):
        seconds(compute), seconds(step)
    sent = limited_links.sent_bytes()
    pairs = [(seconds(compute), seconds(step)) for _ in range(repeats)]
    computing, stepping = (statistics.median(column) for column in zip(*pairs))
    sent_bytes = (limited_links.sent_bytes() - sent) / repeats
    return {"compute_seconds": computing, "measured_seconds": stepping, "sent_bytes": sent_bytes}
