"""Probes of exercise 02: reduce-scatter, replicated steps and state, a whole run.

Needs NumPy; TensorFlow for q2, q3 and q6. The inputs are functions of the seed.
"""

import numpy as np

from course_lib.collectives import Network
from course_lib.exercises.ask import Stopped
from course_lib.exercises.probes.replicas import (
    are_identical,
    counted_runs,
    local_arrays,
    mirrored_strategy,
    on_replicas,
    per_replica,
)
from course_lib.exercises.probes.state import copies_of

ALGORITHMS = ("naive", "tree", "ring")
REPLICAS = 3  # of q2 and q3: fewer than the notebook's four, so that no fixed number of replicas is right
FEATURES = 5  # of q2's rows, another number than of replicas
GLOBAL_BATCH = 128  # q6
LARGEST_FORWARD = 2048  # test examples that q6 is judged on, at most


def rings(seed: int) -> list[list[np.ndarray]]:
    """Workers' float32 buffers (n,): a tiny ring of whole numbers, a drawn one of quarters, and the smallest there is.

    Quarters add up exactly, in any order. The workers divide n.
    """
    rng = np.random.default_rng(seed)
    workers, chunk = int(rng.integers(4, 7)), int(rng.integers(2, 6))
    tiny = [np.arange(1, 7, dtype="float32") * scale for scale in (1, 10, 100)]
    sizes = [workers * chunk] * workers, [2, 2]
    return [tiny, *([rng.integers(1, 200, size).astype("float32") / 4 for size in ring] for ring in sizes)]


class KeepingNetwork(Network):
    """Keeps what it carries, and brings one worker what an earlier network brought it.

    carried  by round, source and target
    """

    def __init__(self, workers: int, worker: int | None = None, earlier: dict | None = None):
        super().__init__(workers)
        self.worker, self.earlier, self.carried = worker, earlier, {}

    def exchange(self, transfers):
        ways = [(self.rounds, source, target) for source, target, _ in transfers]
        received = super().exchange(transfers)
        self.carried |= {way: array.copy() for way, array in zip(ways, received)}
        return [
            self.earlier[way].copy() if way[-1] == self.worker and way in self.earlier else array
            for way, array in zip(ways, received)
        ]

    def sent_by(self, worker: int) -> dict:
        """What a worker sent, by round and target, as shape and bytes."""
        return {
            (number, target): (array.shape, array.dtype.str, array.tobytes())
            for (number, source, target), array in self.carried.items()
            if source == worker
        }


def linear_problem(seed: int, replicas: int) -> tuple[np.ndarray, float, list[list[tuple[np.ndarray, np.ndarray]]]]:
    """Weights (5, 1), a learning rate, and two steps of shards (x (local, 5), y (local, 1)): even, then uneven.

    The two global batches have different sizes, so that no fixed number of rows is right for both.
    """
    rng = np.random.default_rng(seed)
    uneven = [int(rng.integers(3, 6))] * (replicas - 1) + [1]
    steps = [
        [tuple(rng.normal(size=(rows, columns)).astype("float32") for columns in (FEATURES, 1)) for rows in sizes]
        for sizes in ([6] * replicas, uneven)
    ]
    return rng.normal(size=(FEATURES, 1)).astype("float32"), 0.05, steps


def local_batch(seed: int) -> int:
    """Rows that q3's replicas should each see in a step, never as many that a fixed number of the notebook's fits."""
    return int(np.random.default_rng(seed).integers(5, 9))


def examples_of(seed: int, replicas: int) -> int:
    """How many examples q3 has: four global batches, and a short one."""
    return 4 * local_batch(seed) * replicas + replicas + 1


def rows(seed: int, count: int) -> np.ndarray:
    """q3's examples: float32 (count, 3), no two rows alike."""
    return np.random.default_rng(seed).normal(size=(count, 3)).astype("float32")


def warm_ups(seed: int) -> list[tuple[int, float, int, int]]:
    """(step, one_device_rate, replicas, warmup_steps): tiny ones, then before, at and after the end of a warm-up."""
    tiny = [*((step, 1.0, 3, 4) for step in range(6)), (1, 1.0, 5, 2), (2, 1.0, 5, 2)]
    rng = np.random.default_rng(seed)
    rate, replicas, warmup = float(rng.uniform(0.01, 0.1)), int(rng.integers(2, 9)) * 4, int(rng.integers(5, 20)) * 10
    steps = (0, 1, warmup // 5, warmup // 2, warmup - 1, warmup, 3 * warmup)
    return tiny + [(step, rate, replicas, warmup) for step in steps]


def links(seed: int) -> list[tuple[int, int, float, float]]:
    """(buffer_bytes, workers, latency_seconds, gigabits_per_second): tiny ones first, also with a power of two."""
    rng = np.random.default_rng(seed)
    tiny = [
        (1_000_000_000, 5, 1.0, 8.0),
        (1_000_000_000, 2, 1.0, 8.0),
        (10, 4, 0.5, 8e-9),
        (1_000_000_000, 32, 0.25, 8.0),
    ]
    return tiny + [
        (
            int(rng.integers(1, 100)) * 1_000_000,
            int(workers),
            float(rng.uniform(5e-6, 5e-5)),
            float(rng.choice([25, 100, 400])),
        )
        for workers in rng.choice([3, 5, 6, 12, 24, 48], size=3, replace=False)
    ]


def probe_reduce_scatter(names, seed):
    """On each ring the learner's chunks, what the network saw, and a worker's again where others hold other numbers."""
    return {"rings": [_reduced(names["reduce_scatter"], buffers) for buffers in rings(seed)]}


def _reduced(reduce_scatter, buffers):
    network = KeepingNetwork(len(buffers))
    chunks = _chunks(reduce_scatter, buffers, network)
    among_others, sends_the_same = [], []
    for worker, own in enumerate(buffers):
        again = KeepingNetwork(len(buffers), worker, network.carried)
        others = [own if place == worker else 2 * buffer + 1 for place, buffer in enumerate(buffers)]
        among_others.append(_chunks(reduce_scatter, others, again)[worker])
        sends_the_same.append(again.sent_by(worker) == network.sent_by(worker))
    return {
        "chunks": chunks,
        "among_others": among_others,
        "sends_the_same": sends_the_same,
        "sent_bytes": [network.sent_bytes(worker) for worker in range(len(buffers))],
        "hops": sorted({(message.target - message.source) % len(buffers) for message in network.messages}),
        "rounds": network.rounds,
    }


def _chunks(reduce_scatter, buffers, network):
    return [np.asarray(chunk) for chunk in reduce_scatter([buffer.copy() for buffer in buffers], network)]


def probe_replica_step(names, seed):
    """Weights on every replica and the summed loss after each of an even and an uneven step of a linear model."""
    import keras

    strategy = mirrored_strategy(REPLICAS)
    weights, rate, steps = linear_problem(seed, strategy.num_replicas_in_sync)
    with strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1, use_bias=False)])
        optimizer = keras.optimizers.SGD(rate)
        optimizer.build(model.trainable_variables)
    model.set_weights([weights])

    step = on_replicas(strategy, names["replica_step"])
    losses, copies, axes = [], [], []
    for shards in steps:
        parts = local_arrays(strategy, step(args=(model, optimizer, *per_replica(strategy, shards))))
        losses.append(float(sum(part.sum() for part in parts)))
        axes += [part.ndim for part in parts]
        copies.append(copies_of(strategy, model.trainable_variables[0]))
    return {"weights": copies, "losses": losses, "axes_of_a_loss": max(axes)}


def probe_prepare(names, seed):
    """How many replicas hold each variable, and how the examples reach them."""
    import keras
    import tensorflow as tf

    strategy = mirrored_strategy()
    replicas = strategy.num_replicas_in_sync
    global_batch = local_batch(seed) * replicas
    x = rows(seed, examples_of(seed, replicas))
    examples = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
    model, optimizer, batches = names["prepare"](
        strategy,
        lambda: keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]),
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        examples,
        global_batch,
    )
    steps, read = [], 0
    for features, _ in batches:
        steps.append(local_arrays(strategy, features))
        read += sum(shard.size for shard in steps[-1]) // 3
        if read > 2 * len(x):  # it may never end
            break
    return {
        "replicas": replicas,
        "model_copies": [len(copies_of(strategy, variable)) for variable in model.weights],
        "optimizer_copies": [len(copies_of(strategy, variable)) for variable in optimizer.variables],
        "optimizer_built": len(optimizer.variables) > 2,  # more than its step count and learning rate
        "first_shapes": [list(shard.shape) for shard in steps[0]],
        "examples": [row for step in steps for shard in step for row in shard if row.shape == (3,)],
    }


def probe_learning_rate(names, seed):
    """The learner's rates along a warm-up."""
    return {"rates": [float(names["learning_rate"](*case)) for case in warm_ups(seed)]}


def probe_all_reduce_seconds(names, seed):
    """The learner's predictions for every algorithm and link."""
    predict = names["all_reduce_seconds"]
    return {name: [float(predict(name, *link)) for link in links(seed)] for name in ALGORITHMS}


def probe_training(names, seed):
    """The state that the learner's own distributed run leaves behind."""
    x_train, _, x_test, _ = _split(names["load_data"])
    train_examples, seen = len(x_train), {*_rows(x_train)}
    leaked = _share_in(seen, x_test)
    del x_train
    strategy = mirrored_strategy()
    with counted_runs(strategy) as runs:
        model, losses = names["train"](strategy, seed % 1000)
    copies, statistics = (
        [copies_of(strategy, variable) for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )
    _, _, x_test, y_test = _split(names["load_data"])
    leaked_later = _share_in(seen, x_test)
    x_test, y_test = x_test[:LARGEST_FORWARD], y_test[:LARGEST_FORWARD].ravel()
    logits = np.asarray(model(x_test, training=False), "float64")
    return {
        "wanted_replicas": strategy.num_replicas_in_sync,
        "replicas": min(len(values) for values in copies),
        "ran_on_replicas": runs() > 0,
        "given_strategy": all(
            getattr(one.value, "distribute_strategy", None) is strategy for one in model.trainable_variables
        ),
        "probabilities": bool(np.allclose(logits.sum(axis=-1), 1, atol=1e-3) and (logits >= 0).all()),
        "identical": are_identical(copies),
        "statistics_identical": are_identical(statistics),
        "train_examples": train_examples,
        "steps_per_epoch": int(copies_of(strategy, model.optimizer.iterations)[0]) / max(len(losses), 1),
        "losses": [float(loss) for loss in losses],
        "accuracy": float(np.mean(logits.argmax(axis=-1) == y_test)),
        "commonest": float(np.unique(y_test, return_counts=True)[1].max() / len(y_test)),
        "leaked": leaked,
        "leaked_later": leaked_later,
    }


def _split(load_data):
    """The learner's arrays; there must be one label for each example."""
    parts = [np.asarray(part) for part in load_data()]
    for name, x, y in (("train", *parts[:2]), ("test", *parts[2:])):
        if y.size != len(x):
            line = f"y_{name} holds {y.size:,} numbers for {len(x):,} examples, and one class number for each is wanted"
            raise Stopped("raised", line, line)
    return parts


def _rows(x):
    return [row.tobytes() for row in x.astype("float32")]


def _share_in(seen, x):
    return float(np.mean([row in seen for row in _rows(x)]))
