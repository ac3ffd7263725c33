"""Probe of exercise 08's q3: a step on a large batch in the memory of one micro-batch.

Needs NumPy; TensorFlow in the process that it starts. The inputs are functions of the seed.
"""

import numpy as np

from course_lib import cluster
from course_lib.cluster.worker_program import WorkerProgram
from course_lib.errors import CourseError
from course_lib.exercises.probes import workers
from course_lib.exercises.probes.ex08 import LARGE_RATE, MOMENTUM
from course_lib.exercises.probes.ex08_outside import Outside

FIRST_STEP = (1 + MOMENTUM) * LARGE_RATE  # of Nesterov's momentum: no rate that somebody reads off the optimizer
SMALL = {"rows": 9, "micro_batch": 2}  # of a first call: what only a first step needs is not measured
MICRO_BATCHES, PIXELS, WIDTH = 12, 32, 1536  # a copy of the gradients is a twentieth of what a micro-batch needs
# TensorFlow's pool for oneDNN keeps what is freed, and so does malloc for pieces that it does not map one by one.
EXACT_MEMORY = {"TF_ENABLE_ONEDNN_OPTS": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def step_sizes(seed: int) -> dict[str, int]:
    """Arguments of the worker's program: the last micro-batch is smaller."""
    rng = np.random.default_rng(seed)
    micro_batch = 8 * int(rng.integers(14, 19))
    rows = (MICRO_BATCHES - 1) * micro_batch + int(rng.integers(micro_batch // 4, micro_batch // 2))
    return {"micro_batch": micro_batch, "rows": rows, "seed": int(rng.integers(1000))}


def probe_big_step(names, seed):
    """What the learner's step needed and did, in a new process."""
    step = workers.job(names["big_step"]).program
    measured = [  # behind the learner's own lines, so that an error names theirs by number
        "def run(task, **sizes):",
        f"    from {__name__} import measure_step",
        f"    return measure_step({step.function}, **sizes)",
    ]
    lines = [step.text or f"from {step.module} import {step.function}", "", *measured, ""]
    program = WorkerProgram("run", text="\n".join(lines), file=step.file)
    job = cluster.Job(program, workers=1, arguments=step_sizes(seed), environment=EXACT_MEMORY)
    return workers.run(job, "big_step").result


def measure_step(big_step, micro_batch, rows, seed):
    """A worker's program: the memory of plain steps and of the learner's, and what the learner's did.

    Returns  bytes: of the "gradients", and the peaks of a plain step on "one" micro-batch (in a graph, of a loop over
             two) and of "yours"; "off": how far the weights' change is from that of the right gradient, and of wrong
             ones; "updates"; the "loss" returned, "losses", those of the micro-batches, and "later_loss", of all rows
             with the weights that the step left; "repeated_off": how far the change by a second step of one optimizer
             without momentum is from that of its first; "passes" through the loss: [name, rows or 0 if a graph doesn't
             know them, inside a graph, the forward pass's number]; "most_rows" that the model got at once, and
             "small_rows", those in calls of 6 rows and of SMALL's; "turns": as many turns of its loop may a graph
             compute at once, 0 without a loop in a graph; "in_one_graph": the most calls of the loss in one graph
    """
    bench = _Bench(micro_batch, rows, seed)
    bench.plain_step(bench.x[:2], bench.y[:2])  # what only a first step needs
    one = bench.plain_peak_bytes(in_graph=False)
    yours = bench.measure(big_step)
    if any(in_graph for _, _, in_graph, _ in yours["passes"]):  # a graph keeps other arrays for its backward pass
        one = max(one, bench.plain_peak_bytes(in_graph=True))
    losses, gradients = bench.by_micro_batch()
    change, wanted = yours.pop("change"), _candidates(gradients, [len(part) for _, part in bench.parts])
    wanted["one by one"] = -bench.change_one_by_one() / FIRST_STEP
    wanted["by the rate alone"] = wanted["right"] / (1 + MOMENTUM)
    peak_bytes = {"gradients": 4 * gradients[0].size, "one": one, "yours": yours.pop("peak_bytes")}
    return {
        **yours,
        "bytes": peak_bytes,
        "off": {name: _off(change, -FIRST_STEP * gradient) for name, gradient in wanted.items()},
        "losses": losses,
    }


def _candidates(gradients, rows) -> dict[str, np.ndarray]:
    """The group's gradient, right and wrong, from the micro-batches' gradients and rows."""
    right = np.average(gradients, axis=0, weights=rows)
    return {
        "right": right,
        "mean of means": np.mean(gradients, axis=0),
        "last dropped": np.mean(gradients[:-1], axis=0),
        "last alone": gradients[-1],
        "first alone": gradients[0],
        "all full": np.sum(gradients, axis=0) * rows[0] / sum(rows),
        "sum of means": np.sum(gradients, axis=0),
        "sum over rows": sum(rows) * right,
    }


class _Bench:
    """A model and a big batch; every measurement starts from the same weights."""

    def __init__(self, micro_batch, rows, seed):
        import tensorflow as tf

        from course_lib import models

        rng = np.random.default_rng(seed)
        self.micro_batch = micro_batch
        scales = np.linspace(0.5, 2, rows).reshape(-1, 1, 1, 1)  # so that no micro-batch has the loss of another
        self.x = tf.constant((scales * rng.normal(size=(rows, PIXELS, PIXELS, 1))).astype("float32"))
        self.y = tf.constant(rng.integers(0, 10, rows))
        self.parts = [
            (self.x[at : at + micro_batch], self.y[at : at + micro_batch]) for at in range(0, rows, micro_batch)
        ]
        self.model = models.cnn((PIXELS, PIXELS, 1), 10, filters=(8, 8, 8), width=WIDTH)
        self.rows = _Rows(self.model.get_layer("conv1"))
        self.first = self.model.get_weights()
        self.optimizer = self.new_optimizer()

    def loss(self, y, logits):
        """Not the lesson's, so that the one that a step is given decides; of no rows it is not a number."""
        import tensorflow as tf

        return tf.reduce_mean(tf.reduce_sum((logits - tf.one_hot(y, 10)) ** 2, axis=1))

    def new_optimizer(self, momentum=MOMENTUM):
        import keras

        optimizer = keras.optimizers.SGD(LARGE_RATE, momentum=momentum, nesterov=momentum > 0)
        optimizer.build(self.model.trainable_variables)
        return optimizer

    def gradients(self, x, y):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x, training=True))
        return loss, tape.gradient(loss, self.model.trainable_variables)

    def plain_step(self, x, y):
        loss, gradients = self.gradients(x, y)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return loss

    def plain_peak_bytes(self, in_graph: bool) -> int:
        import tensorflow as tf

        from course_lib import measure

        if not in_graph:
            return measure.peak_memory_bytes(lambda: self.plain_step(*self.parts[0]))

        @tf.function
        def step(x, y):
            """A loop of two turns: a graph's loop holds old sums and new ones at once, and more of its last turn."""
            loss, sums = 0.0, [tf.zeros(variable.shape) for variable in self.model.trainable_variables]
            for start in tf.range(0, tf.shape(x)[0], self.micro_batch):
                tf.autograph.experimental.set_loop_options(parallel_iterations=1)
                loss, gradients = self.gradients(
                    x[start : start + self.micro_batch], y[start : start + self.micro_batch]
                )
                sums = [one + other for one, other in zip(sums, gradients)]
            self.optimizer.apply(sums, self.model.trainable_variables)
            return loss

        # A graph's operations run side by side, not always the same ones: give it as many chances as the learner's.
        x, y = self.x[: 2 * self.micro_batch], self.y[: 2 * self.micro_batch]
        return max(measure.peak_memory_bytes(lambda: step(x, y)) for _ in self.parts)

    def measure(self, big_step) -> dict[str, object]:
        """The learner's step on the whole batch: its peak, its loss, its passes, its updates, the weights' change."""
        import tensorflow as tf

        passes, seen, graphs, returned, peaks, changes = [], [], [], [], [], []

        def loss(y, predictions):
            if not tf.executing_eagerly():
                graphs.append(tf.compat.v1.get_default_graph())
            return self.loss(y, _watched(predictions, passes))

        def step():
            returned.append(float(big_step(self.model, optimizer, loss, self.x, self.y, self.micro_batch)))

        exact = 3 * SMALL["micro_batch"]
        self.rows.start()
        self.model.set_weights(self.first)
        loss_of_exact = big_step(
            self.model, self.new_optimizer(), self.loss, self.x[:exact], self.y[:exact], exact // 3
        )
        weights = [loss_of_exact or 0.0, *self.model.get_weights()]
        if not all(np.isfinite(np.asarray(value)).all() for value in weights):
            raise CourseError(
                f"with {exact} rows and micro_batch={exact // 3} the loss or a weight is not finite; "
                f"is one of your micro-batches empty?"
            )
        x, y, optimizer = self.x[: SMALL["rows"]], self.y[: SMALL["rows"]], self.new_optimizer(momentum=0.0)
        for _ in range(2):
            self.model.set_weights(self.first)
            if big_step(self.model, optimizer, loss, x, y, SMALL["micro_batch"]) is None:
                raise CourseError("big_step returned nothing: return the mean loss over all rows.")
            changes.append(self.change())
        small_rows = self.rows.most()
        self.rows.start()
        with Outside() as outside:
            for _ in range(2):  # in a graph, what frees memory may by chance run a little late
                self.model.set_weights(self.first)
                optimizer = self.new_optimizer()
                passes.clear()
                returned.clear()
                peaks.append(outside.peak_bytes(step))
                seen = [*passes] or seen  # a graph that is kept is traced once
        most_rows = self.rows.most()
        later_losses = [float(self.loss(y, self.model(x))) for x, y in self.parts]
        return {
            "change": self.change(),
            "peak_bytes": min(peaks),
            "loss": returned[0],
            "passes": seen,
            "most_rows": most_rows,
            "small_rows": small_rows,
            "turns": max(map(_turns_at_once, graphs), default=0),
            "in_one_graph": max(map(graphs.count, graphs), default=0),
            "updates": int(optimizer.iterations.numpy()),
            "repeated_off": _off(*changes),
            "later_loss": float(np.average(later_losses, weights=[len(y) for _, y in self.parts])),
        }

    def change(self) -> np.ndarray:
        """Of the weights since the first ones, as one vector."""
        return np.concatenate([np.ravel(now - then) for now, then in zip(self.model.get_weights(), self.first)])

    def change_one_by_one(self) -> np.ndarray:
        """The change by an update from each micro-batch's share of the gradient, in place of one from their sum."""
        self.model.set_weights(self.first)
        optimizer = self.new_optimizer()
        for x, y in self.parts:
            share = len(y) / len(self.y)
            optimizer.apply([share * gradient for gradient in self.gradients(x, y)[1]], self.model.trainable_variables)
        return self.change()

    def by_micro_batch(self) -> tuple[list[float], list[np.ndarray]]:
        """Every micro-batch's loss, and its gradients as one vector."""
        self.model.set_weights(self.first)
        computed = [self.gradients(*part) for part in self.parts]
        losses = [float(loss) for loss, _ in computed]
        return losses, [np.concatenate([np.ravel(one) for one in gradients]) for _, gradients in computed]


def _off(change, wanted) -> float:
    return float(np.linalg.norm(change - wanted) / np.linalg.norm(wanted))


def _turns_at_once(graph) -> int:
    """The most turns that TensorFlow may compute at once of a loop around this graph, 0 where there is none."""
    turns = 0
    while outer := getattr(graph, "outer_graph", None):
        for operation in outer.get_operations():
            if operation.type in ("While", "StatelessWhile") and operation.get_attr("body").name == graph.name:
                turns = max(turns, operation.get_attr("parallel_iterations"))
        graph = outer
    return turns


class _Rows:
    """Counts the most rows that a layer gets at once, eagerly and in graphs."""

    def __init__(self, layer):
        import tensorflow as tf

        self._known, self._in_graph, call = 0, tf.Variable(0, trainable=False), layer.call

        def counted(inputs):
            if inputs.shape[0] is None:  # known when the graph runs; XLA compiles this, too
                self._in_graph.assign(tf.maximum(self._in_graph, tf.shape(inputs)[0]))
            else:
                self._known = max(self._known, inputs.shape[0])
            return call(inputs)

        layer.call = counted

    def start(self) -> None:
        self._known = 0
        self._in_graph.assign(0)

    def most(self) -> int:
        return max(self._known, int(self._in_graph.numpy()))


def _watched(predictions, passes):
    """The predictions as they are; each pass through them is noted."""
    import tensorflow as tf

    number = sum(name == "forward" for name, *_ in passes)

    def note(name):
        passes.append([name, predictions.shape[0] or 0, not tf.executing_eagerly(), number])

    @tf.custom_gradient
    def identity(predictions):
        note("forward")

        def backward(upstream):
            note("backward")
            return upstream

        return tf.identity(predictions), backward

    return identity(predictions)
