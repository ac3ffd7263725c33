"""Record the profiles of exercise 10's q4 on this machine: `python tests/record_profiles.py`.

Needs TensorFlow, and JAX to read the recordings. Three small runs whose bottleneck is known by construction: an
input that works long for every batch, large products on one device, and large gradients of few examples that two
workers sum.
"""

import json
import tempfile
from collections.abc import Callable, Iterable

from course_lib.exercises.given.recordings import FILE
from course_lib.profiler import Event

STEPS, WARMUP = 16, 4
ROUNDED = 7  # digits of a second: a tenth of a microsecond


def main() -> None:
    from course_lib import cluster, devices

    devices.quieten()
    two_workers = cluster.Job(f"{__file__}:on_a_worker", resources=cluster.Resources(cpus=1))
    recordings = {
        "input": recorded(_on_one_device(width=64), _worked_on(rows=64, resizes=24)),
        "compute": recorded(_on_one_device(width=1024), _worked_on(rows=512, resizes=0)),
        "communication": cluster.run(two_workers, show=None).results["worker 0"],
    }
    packed = {kind: _packed(events) for kind, events in recordings.items()}
    FILE.write_text(json.dumps(packed, separators=(",", ":")) + "\n")
    for kind, events in recordings.items():
        print(f"{kind}: {len(events)} events")


def on_a_worker(task) -> list[Event]:
    """The program of two workers that train one model on eight examples."""
    import itertools

    import tensorflow as tf

    from course_lib import training

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model, optimizer, loss = parts(width=1024)
    place = strategy.experimental_distribute_values_from_function
    shard = tuple(place(lambda _, part=part: part) for part in (tf.ones((8, 16, 16, 3)), tf.zeros((8,), "int32")))
    return recorded(training.replicated_step(strategy, model, optimizer, loss), itertools.repeat(shard))


def recorded(step: Callable, batches: Iterable) -> list[Event]:
    """The marks and the operations of STEPS steps."""
    import tensorflow as tf

    from course_lib import profiler

    mark, iterator = tf.profiler.experimental.Trace, iter(batches)
    for _ in range(WARMUP):
        step(next(iterator))
    with tempfile.TemporaryDirectory() as folder:
        with profiler.profile(folder):
            for _ in range(STEPS):
                with mark("train"):
                    with mark("input"):
                        batch = next(iterator)
                    step(batch).numpy()
        events = profiler.read_trace(folder)
    trains = [event for event in events if event.name == "train"]
    start, end = min(event.start_seconds for event in trains), max(event.end_seconds for event in trains)
    return [event for event in events if start <= event.start_seconds < end and _is_kept(event)]


def _is_kept(event: Event) -> bool:
    """The marks, and operations, whose names end in their type; the rest is internal to TensorFlow."""
    name, _, kind = event.name.rpartition(":")
    is_operation = bool(name) and not name.endswith(":") and kind.lstrip("_").isalnum()
    return event.name in ("train", "input") or is_operation and event.thread != "python"


def _packed(events: list[Event]) -> dict[str, list]:
    names = list(dict.fromkeys(event.name for event in events))
    threads = list(dict.fromkeys(event.thread for event in events))
    begin = min(event.start_seconds for event in events)
    rows = [
        [
            names.index(e.name),
            threads.index(e.thread),
            *(round(s, ROUNDED) for s in (e.start_seconds - begin, e.duration_seconds)),
        ]
        for e in events
    ]
    shown = [f"{thread.split('/')[0]}/{number}" if "/" in thread else thread for number, thread in enumerate(threads)]
    return {"names": names, "threads": shown, "events": rows}


def _worked_on(rows: int, resizes: int):
    """Batches of random images; each is resized `resizes` times while the loop waits; with 0 it is ready before."""
    import tensorflow as tf

    def work(images, labels):
        for _ in range(resizes):
            images = tf.image.resize(tf.image.resize(images, (48, 48)), (16, 16))
        return images, labels

    images = tf.random.stateless_uniform((4 * rows, 16, 16, 3), (1, 2))
    batches = tf.data.Dataset.from_tensor_slices((images, tf.zeros((4 * rows,), "int32"))).batch(rows).repeat()
    return batches.map(work) if resizes else batches.prefetch(4)


def parts(width: int):
    import keras

    from course_lib import models

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    return models.mlp((16, 16, 3), 10, width=width), keras.optimizers.SGD(0.1), loss


def _on_one_device(width: int) -> Callable:
    from course_lib import training

    model, optimizer, loss = parts(width)
    optimizer.build(model.trainable_variables)
    step = training.single_device_step(model, optimizer, loss)
    return lambda batch: step(*batch)


if __name__ == "__main__":
    main()
