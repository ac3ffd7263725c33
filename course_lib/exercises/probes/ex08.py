"""Probes of exercise 08: a group's gradient, three loops, a step in little memory, a plan, two replicas.

Needs NumPy; TensorFlow for q2 and q5, and for q3 in its own process. The inputs are functions of the seed.
"""

import functools

import numpy as np

from course_lib import cluster
from course_lib.cluster.worker_program import WorkerProgram
from course_lib.errors import CourseError
from course_lib.exercises.ask import WRITE_HERE, Stopped
from course_lib.exercises.probes import workers
from course_lib.exercises.probes.state import device_names

LOOPS = ("loop_a", "loop_b", "loop_c")  # of q2
OPTIMIZERS = ("plain SGD", "momentum", "Adam")
RATE, MOMENTUM = 0.05, 0.9  # of q2's optimizers
LARGE_RATE = 0.5  # of q3 and q5, so that a change is not lost in the rounding of what it changes
MICRO_BATCHES, PIXELS, WIDTH = 12, 32, 1536  # of q3; a copy of the gradients is a twentieth of what a micro-batch needs
NO_PLAN = "ValueError"  # q4's answer where no micro-batch fits
# TensorFlow's pool for oneDNN keeps what is freed, and so does malloc for pieces that it does not map one by one.
EXACT_MEMORY = {"TF_ENABLE_ONEDNN_OPTS": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


# q1: a group's gradient


def streams(seed: int) -> list[tuple[list[tuple[np.ndarray, int]], int]]:
    """q1's cases, (micro-batches, k), with micro-batches (gradient (n,) float64, rows): a rest, none, a rest alone."""
    rng = np.random.default_rng(seed)
    cases = []
    for count, k in ((8, 3), (8, 4), (3, 5)):
        rows = rng.permutation(np.arange(2, 2 + count))
        cases.append(([(rng.normal(size=4), int(number)) for number in rows], k))
    return cases


def probe_group_gradients(names, seed):
    """The learner's gradients for each stream, and whether the stream's arrays are as they were."""
    answers = []
    for (micro_batches, k), (given, _) in zip(streams(seed), streams(seed)):
        gradients = [np.asarray(gradient) for gradient in names["group_gradients"](iter(given), k)]
        unchanged = all(np.array_equal(one, other) for (one, _), (other, _) in zip(micro_batches, given))
        answers.append({"gradients": gradients, "unchanged": unchanged})
    return {"streams": answers}


# q2: three loops


def linear_epoch(seed: int) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]], int]:
    """Weights (3, 1), micro-batches (x (rows, 3), y (rows, 1)) of equal rows, and k, which does not divide them."""
    rng = np.random.default_rng(seed)
    rows, k = int(rng.integers(5, 9)), int(rng.integers(3, 5))
    shapes = [((rows, 3), (rows, 1))] * (2 * k + int(rng.integers(1, k)))
    micro_batches = [tuple(rng.normal(size=shape).astype("float32") for shape in pair) for pair in shapes]
    return _far_weights(rng, (3, 1)), micro_batches, k


def _far_weights(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Weights far from the minimum: near zero, gradients are not clipped and Adam amplifies their rounding."""
    return (rng.uniform(2, 4, shape) * rng.choice([-1, 1], shape)).astype("float32")


def probe_loops(names, seed):
    """Of each loop with each optimizer the final weights, and the updates that the loop returned."""
    import keras

    first, micro_batches, k = linear_epoch(seed)
    makers = (
        lambda: keras.optimizers.SGD(RATE),
        lambda: keras.optimizers.SGD(RATE, momentum=MOMENTUM),
        lambda: keras.optimizers.Adam(RATE),
    )
    answers = {}
    for loop in LOOPS:
        answers[loop] = {}
        for name, new_optimizer in zip(OPTIMIZERS, makers):
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
            model.set_weights([first])
            updates = names[loop](model, new_optimizer(), list(micro_batches), k)
            answers[loop][name] = {"weights": model.get_weights()[0], "updates": int(updates)}
    return answers


# q3: a step in the memory of one micro-batch


def step_sizes(seed: int) -> dict[str, int]:
    """Arguments of q3's program: the last micro-batch is smaller."""
    rng = np.random.default_rng(seed)
    micro_batch = 8 * int(rng.integers(14, 19))
    rows = (MICRO_BATCHES - 1) * micro_batch + int(rng.integers(micro_batch // 4, micro_batch // 2))
    return {"micro_batch": micro_batch, "rows": rows, "seed": int(rng.integers(1000))}


def probe_big_step(names, seed):
    """What the learner's step needed and did, in a new process."""
    try:
        step = WorkerProgram.of(names["big_step"])
    except CourseError as error:
        raise Stopped("raised", str(error), str(error)) from None
    if WRITE_HERE in (step.text or ""):
        raise Stopped("blank", f"{step.function} is still blank")
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

    Returns  bytes: of the "gradients", and the peaks of a plain step on "one" micro-batch and of "yours"; "off": how
             far the weights' change is from that of the right gradient, and of wrong ones; "updates"; the "loss"
             returned, and "losses", those of the micro-batches; "passes": [name, rows, inside a graph]
    """
    bench = _Bench(micro_batch, rows, seed)
    bench.plain_step(bench.x[:2], bench.y[:2])  # what only a first step needs
    one = bench.plain_peak_bytes(in_graph=False)
    yours = bench.measure(big_step)
    if any(in_graph for _, _, in_graph in yours["passes"]):  # a graph keeps other arrays for its backward pass
        one = max(one, bench.plain_peak_bytes(in_graph=True))
    losses, gradients = bench.by_micro_batch()
    change, wanted = yours.pop("change"), _candidates(gradients, [len(part) for _, part in bench.parts])
    peak_bytes = {"gradients": 4 * gradients[0].size, "one": one, "yours": yours.pop("peak_bytes")}
    return {
        **yours,
        "bytes": peak_bytes,
        "off": {
            name: float(np.linalg.norm(change + LARGE_RATE * gradient) / np.linalg.norm(LARGE_RATE * gradient))
            for name, gradient in wanted.items()
        },
        "losses": losses,
    }


def _candidates(gradients, rows) -> dict[str, np.ndarray]:
    """The group's gradient, right and wrong, from the micro-batches' gradients and rows."""
    right = np.average(gradients, axis=0, weights=rows)
    return {
        "right": right,
        "mean of means": np.mean(gradients, axis=0),
        "last dropped": np.mean(gradients[:-1], axis=0),
    }


class _Bench:
    """A model and a big batch; every measurement starts from the same weights."""

    def __init__(self, micro_batch, rows, seed):
        import keras
        import tensorflow as tf

        from course_lib import models

        rng = np.random.default_rng(seed)
        self.micro_batch = micro_batch
        self.x = tf.constant(rng.normal(size=(rows, PIXELS, PIXELS, 1)).astype("float32"))
        self.y = tf.constant(rng.integers(0, 10, rows))
        self.parts = [
            (self.x[at : at + micro_batch], self.y[at : at + micro_batch]) for at in range(0, rows, micro_batch)
        ]
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model = models.cnn((PIXELS, PIXELS, 1), 10, filters=(8, 8, 8), width=WIDTH)
        self.first = self.model.get_weights()
        self.optimizer = self.new_optimizer()

    def new_optimizer(self):
        import keras

        optimizer = keras.optimizers.SGD(LARGE_RATE, momentum=MOMENTUM)
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
        step = tf.function(self.plain_step)
        # A graph's operations run side by side, not always the same ones: give it as many chances as the learner's.
        return max(measure.peak_memory_bytes(lambda: step(*self.parts[0])) for _ in self.parts)

    def measure(self, big_step) -> dict[str, object]:
        """The learner's step on the whole batch: its peak, its loss, its passes, its updates, the weights' change."""
        from course_lib import measure

        passes, returned, optimizer = [], [], self.new_optimizer()

        def loss(y, predictions):
            return self.loss(y, _watched(predictions, passes))

        def step():
            returned.append(float(big_step(self.model, optimizer, loss, self.x, self.y, self.micro_batch)))

        # What only a first step needs is not measured.
        if big_step(self.model, self.new_optimizer(), loss, self.x[:5], self.y[:5], 2) is None:
            raise CourseError("big_step returned nothing: return the mean loss over all rows.")
        self.model.set_weights(self.first)
        passes.clear()

        peak_bytes = measure.peak_memory_bytes(step)
        change = [np.ravel(now - then) for now, then in zip(self.model.get_weights(), self.first)]
        return {
            "peak_bytes": peak_bytes,
            "loss": returned[0],
            "passes": passes,
            "updates": int(optimizer.iterations.numpy()),
            "change": np.concatenate(change),
        }

    def by_micro_batch(self) -> tuple[list[float], list[np.ndarray]]:
        """Every micro-batch's loss, and its gradients as one vector."""
        self.model.set_weights(self.first)
        computed = [self.gradients(*part) for part in self.parts]
        return [float(loss) for loss, _ in computed], [
            np.concatenate([np.ravel(g) for g in part]) for _, part in computed
        ]


def _watched(predictions, passes):
    """The predictions as they are; each pass through them is noted."""
    import tensorflow as tf

    def note(name):
        passes.append([name, predictions.shape[0] or 0, not tf.executing_eagerly()])

    @tf.custom_gradient
    def identity(predictions):
        note("forward")

        def backward(upstream):
            note("backward")
            return upstream

        return tf.identity(predictions), backward

    return identity(predictions)


# q4: a plan


def runs_to_plan(seed: int) -> list[dict[str, int]]:
    """q4's cases, each decided by something else; in two, nothing fits or the replicas do not divide the batch."""
    rng = np.random.default_rng(seed)
    base = {"global_batch": 80, "replicas": 2}
    special = [
        base | {"memory": 37.0},  # with the sums, 17 examples of 40 fit; without, 20
        base | {"memory": 61.5},  # all 40 fit, if there are no sums
        base | {"memory": 100.0},
        {"memory": 37.0, "global_batch": 120, "replicas": 3},
        {"memory": 21.0, "global_batch": 60, "replicas": 4},
        base | {"memory": 14.5},  # two fit, if there are no sums
        base | {"memory": 100.0, "global_batch": 82, "replicas": 4},
    ]
    cases = [_run_to_plan(rng, **case) for case in special]
    return [cases[place] for place in rng.permutation(len(cases))]


def _run_to_plan(rng: np.random.Generator, memory: float, global_batch: int, replicas: int) -> dict[str, int]:
    gigabyte = rng.uniform(0.5e9, 2e9)
    examples = global_batch * int(rng.integers(20, 40)) + int(rng.integers(1, global_batch // 2))
    return {
        "global_batch": global_batch,
        "replicas": replicas,
        "memory_bytes": int(memory * gigabyte),
        "state_bytes": int(12 * gigabyte),
        "gradient_bytes": int(4 * gigabyte),
        "example_bytes": int(1.2 * gigabyte),
        "examples": examples,
        "epochs": int(rng.integers(7, 12)),
        "warmup_examples": 3 * examples + int(rng.integers(2, 15)) * global_batch + int(rng.integers(1, global_batch)),
    }


def probe_plan(names, seed):
    """The learner's plan of each run, or that it raised a ValueError."""
    return {"plans": [_ask_plan(names["plan_group"], case) for case in runs_to_plan(seed)]}


def _ask_plan(plan_group, case):
    try:
        return dict(plan_group(**case))
    except ValueError:
        return NO_PLAN


# q5: two replicas


def replica_groups(seed: int) -> tuple[list[np.ndarray], list[tuple[float, list]]]:
    """First weights (3, 1) and (1,); groups (clip_norm, micro-batches [replica] of x (rows, 3), y (rows, 1)).

    The first group is clipped and the second is not. One replica has more rows than the other in each group.
    """
    rng = np.random.default_rng(seed)

    def shard(rows):
        return tuple(rng.normal(size=(rows, width)).astype("float32") for width in (3, 1))

    def group():
        sizes = rng.permutation([rng.permutation([4, 6]), rng.permutation([1, 3])])  # [replica][micro-batch]
        return [[shard(int(rows)) for rows in micro_batch] for micro_batch in sizes.T]

    groups = [(float(rng.uniform(0.5, 1.0)), group()), (1000.0, group())]
    return [_far_weights(rng, shape) for shape in ((3, 1), (1,))], groups


def probe_two_replicas(names, seed):
    """Each replica's weights after each group, as a vector; the numbers in each all-reduce of `add` and of `update`."""
    import tensorflow as tf

    strategy, (first, groups) = _strategy(), replica_groups(seed)
    summed = {"add": [], "update": []}

    def counted(kind):
        def all_reduce(tensors):
            context = tf.distribute.get_replica_context()
            tensors = tf.nest.map_structure(tf.convert_to_tensor, tensors)
            if tf.get_static_value(context.replica_id_in_sync_group) == 0:  # each replica asks for the same
                summed[kind].append(sum(tensor.shape.num_elements() for tensor in tf.nest.flatten(tensors)))
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tensors)

        return all_reduce

    def replica_run(shards):
        weights, velocity, seen = first, [0.0, 0.0], []
        for (clip_norm, _), micro_batches in zip(groups, shards):
            sums = [*(tf.zeros(variable.shape) for variable in weights), tf.zeros(())]
            for x, y in micro_batches:
                sums = names["add"](
                    sums, _gradients(weights, x, y), tf.cast(tf.shape(x)[0], tf.float32), counted("add")
                )
            gradients = names["update"](sums, clip_norm, counted("update"))
            velocity = [MOMENTUM * v - LARGE_RATE * gradient for v, gradient in zip(velocity, gradients, strict=True)]
            weights = [variable + v for variable, v in zip(weights, velocity)]
            seen.append(tf.concat([tf.reshape(variable, [-1]) for variable in weights], axis=0))
        return tf.stack(seen)

    shards = [[_per_replica(strategy, micro_batch) for micro_batch in micro_batches] for _, micro_batches in groups]
    # A partial is new to TensorFlow at every check; a function written here would be counted as one that retraces.
    run = tf.function(functools.partial(strategy.run, replica_run))
    weights = [np.asarray(part) for part in strategy.experimental_local_results(run(args=(shards,)))]
    return {"weights": weights, "summed": summed}


def _gradients(weights, x, y):
    """Of the mean squared error over the rows, by each of the linear model's two variables."""
    import tensorflow as tf

    kernel, bias = weights
    errors = 2 * (x @ kernel + bias - y) / tf.cast(tf.shape(x)[0], tf.float32)
    return [tf.transpose(x) @ errors, tf.reduce_sum(errors, axis=0)]


def _per_replica(strategy, shards):
    """(x, y), each one value per replica."""
    import tensorflow as tf

    return tuple(
        strategy.experimental_distribute_values_from_function(
            lambda context, part=part: tf.constant(shards[context.replica_id_in_sync_group][part])
        )
        for part in (0, 1)
    )


@functools.cache
def _strategy():
    import tensorflow as tf

    # As in exercise 02: this strategy's collectives must not meet those of the learner's.
    return tf.distribute.MirroredStrategy(device_names()[:2], cross_device_ops=tf.distribute.ReductionToOneDevice())
