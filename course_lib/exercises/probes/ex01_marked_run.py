"""The distributed run that exercise 01's q5 has recorded: heavy in its input or in its step. Needs TensorFlow."""

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
        def __init__(self, value):
            self._value = value

        def numpy(self):
            with mark("probe: wait"):
                return self._value.numpy()

    class Step:
        calls = 0

        def __call__(self, batch):
            self.calls += 1
            with mark("probe: first call" if self.calls == 1 else "probe: call"):
                return Loss(run(batch))

    class Batches:
        def __iter__(self):
            for number in range(BATCHES):
                with mark("probe: pull"):  # no thread works ahead, so that heavy input shows in every pull
                    loaded = load(tf.constant(number))
                    batch = strategy.experimental_distribute_values_from_function(lambda _, loaded=loaded: loaded)
                yield batch

    return Step(), Batches()
