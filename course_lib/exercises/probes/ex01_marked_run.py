"""The distributed run that exercise 01's q5 has recorded: heavy in its input or in its step. Needs TensorFlow."""

from pathlib import Path

import numpy as np

from course_lib.exercises.probes.state import device_names

SIDE, PRODUCTS = 128, 200  # the heavy side multiplies matrices: ten times what the light side takes, and more
BATCHES = 16


def marked_run(heavy: str):
    """A step over all devices and its batches, each marking itself in a recording."""
    import tensorflow as tf

    mark = tf.profiler.experimental.Trace
    strategy = tf.distribute.MirroredStrategy(device_names())

    def work(number, heavy):
        """Products one after another, so that it takes long on any hardware; the number keeps it from being folded."""
        matrix = tf.fill((SIDE, SIDE), tf.cos(tf.cast(number, tf.float32)))
        left, product = tf.constant(PRODUCTS if heavy else 0), matrix
        _, product = tf.while_loop(
            lambda left, _: left > 0, lambda left, product: (left - 1, product @ matrix / SIDE), (left, product)
        )
        return product[0, 0]

    @tf.function
    def load(number):
        return work(number, heavy == "input")

    @tf.function
    def run(batch):
        per_replica = strategy.run(lambda number: work(number, heavy == "compute"), (batch,))
        return strategy.reduce("SUM", per_replica, axis=None)

    class Loss:
        def __init__(self, value, wait):
            self._value, self._wait, self.awaited = value, wait, False

        def numpy(self):
            with mark(self._wait):
                self.awaited = True
                return self._value.numpy()

        def __float__(self):
            return float(self.numpy())

        def __array__(self, dtype=None, copy=None):
            return np.asarray(self.numpy(), dtype)

    given = []  # (iterator, number, batch) of all that has been pulled

    class Step:
        first, first_awaited = None, False

        def __init__(self):
            self.met, self.outdated = [], 0

        def begin_again(self):
            self.first, self.first_awaited, self.met, self.outdated = None, False, [], 0

        def __call__(self, batch):
            self.met.append(batch)
            self.outdated += any(batch is one for *_, one in given[:-1])
            if self.first is None:
                with mark("probe: first call"):
                    self.first = Loss(run(batch), "probe: first wait")
                return self.first
            self.first_awaited = self.first.awaited
            with mark("probe: call"):
                return Loss(run(batch), "probe: wait")

    class Batches:
        def numbers_of(self, met):
            """Which batch each one is, of the iterator that gave it; -1 for what none gave."""
            numbers = {id(batch): number for _, number, batch in given}
            return [numbers.get(id(batch), -1) for batch in met]

        def iterators_of(self, met):
            """From how many iterators they come."""
            return len({iterator for iterator, _, batch in given if any(batch is one for one in met)})

        def __iter__(self):
            this = object()
            for number in range(BATCHES):
                with mark("probe: pull"):  # no thread works ahead, so that heavy input shows in every pull
                    loaded = load(tf.constant(number))
                    batch = strategy.experimental_distribute_values_from_function(lambda _, loaded=loaded: loaded)
                given.append((this, number, batch))
                yield batch

    return Step(), Batches()


def train_numbers(folder: str) -> list[tuple[int, int]]:
    """(step_num, _r) of each train mark of a recording in order; -1 for what it lacks."""
    from jax.profiler import ProfileData

    newest = max(Path(folder).rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime_ns)
    planes = ProfileData.from_file(str(newest)).planes
    marks = [event for plane in planes for line in plane.lines for event in line.events if event.name == "train"]
    marks.sort(key=lambda mark: mark.start_ns)
    return [tuple(int(dict(mark.stats).get(key, -1)) for key in ("step_num", "_r")) for mark in marks]
