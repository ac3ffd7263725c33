"""Probes of exercise 02: reduce-scatter, predictions, a whole run; q2 is in ex02_step, q3 in ex02_prepare.

Needs NumPy; TensorFlow for q6. The inputs are functions of the seed.
"""

import math

import numpy as np

from course_lib.collectives import Network
from course_lib.exercises.ask import Stopped
from course_lib.exercises.probes.counted_updates import counted_updates
from course_lib.exercises.probes.ex02_rows import hashes, watched_models
from course_lib.exercises.probes.replicas import are_identical, counted_runs, mirrored_strategy
from course_lib.exercises.probes.state import copies_of

ALGORITHMS = ("naive", "tree", "ring")
GLOBAL_BATCH = 128  # q6
LARGEST_FORWARD = 2048  # test examples that q6 is judged on, at most


def rings(seed: int) -> list[list[np.ndarray]]:
    """Workers' float32 buffers (n,): a tiny ring of whole numbers, a drawn one of quarters, the smallest there is, one
    of many workers, and one of large buffers.

    Quarters add up exactly, in any order. The workers divide n. In the smallest ring one buffer is all zeros, which
    are sent as well.
    """
    rng = np.random.default_rng(seed)
    workers, chunk = int(rng.integers(4, 7)), int(rng.integers(2, 6))
    tiny = [np.arange(1, 7, dtype="float32") * scale for scale in (1, 10, 100)]
    sizes = [workers * chunk] * workers, [2, 2], [3 * int(rng.integers(130_000, 140_000))] * 3
    many = int(rng.integers(17, 25))
    sizes = (*sizes, [many] * many)
    drawn, smallest, large, long = (
        [rng.integers(1, 200, size).astype("float32") / 4 for size in ring] for ring in sizes
    )
    smallest[int(rng.integers(2))][:] = 0
    return [tiny, drawn, smallest, long, large]


def shown(chunk: np.ndarray) -> np.ndarray:
    """A small chunk; of a large one every 997th number, and the last."""
    return chunk if chunk.size < 1000 else np.append(chunk[::997], chunk[-1:])


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

    def ways_to(self, worker: int) -> set:
        """The rounds and sources of the messages to a worker."""
        return {way for way in self.carried if way[-1] == worker}

    def sent_by(self, worker: int) -> dict:
        """What a worker sent, by round and target, as shape and bytes."""
        return {
            (number, target): (array.shape, array.dtype.str, array.tobytes())
            for (number, source, target), array in self.carried.items()
            if source == worker
        }


def warm_ups(seed: int) -> list[tuple[int, float, int, int]]:
    """(step, one_device_rate, replicas, warmup_steps): tiny ones, then before, at and after the end of a warm-up, then
    such of hundreds of thousands of replicas and steps.

    Of the tiny ones some differ in one argument from (1, 1.0, 3, 4), and some have one replica or one step.
    """
    tiny = [*((step, 1.0, 3, 4) for step in range(6)), (0, 2.0, 3, 4), (1, 2.0, 3, 4), (1, 1.0, 5, 4), (1, 1.0, 3, 8)]
    tiny += [(1, 1.0, 5, 2), (2, 1.0, 5, 2), (0, 1.0, 1, 2), (1, 1.0, 1, 2), (0, 1.0, 3, 1), (1, 1.0, 3, 1)]
    rng = np.random.default_rng(seed)
    rate, replicas, warmup = float(rng.uniform(0.01, 0.1)), int(rng.integers(2, 9)) * 4, int(rng.integers(5, 20)) * 10
    steps = (0, 1, warmup // 5, warmup // 2, warmup - 1, warmup, 3 * warmup, 10_000 * warmup)
    drawn = [(step, scale * rate, replicas, warmup) for scale in (1, 1e-3) for step in steps]
    many, long = (int(count) for count in rng.integers(400_000, 1_000_000, size=2))
    steps = (0, long // 3, long - 1, long, 1000 * long)
    return tiny + drawn + [(step, scale * rate, many, long) for scale in (1000, 1e-9) for step in steps]


def links(seed: int) -> list[tuple[int, int, float, float]]:
    """(buffer_bytes, workers, latency_seconds, gigabits_per_second): tiny ones first, also with a power of two; the
    last have a large buffer, very many workers, or a slow link.

    Of the tiny ones some differ in one argument from the first.
    """
    rng = np.random.default_rng(seed)
    tiny = [
        (1_000_000_000, 5, 1.0, 8.0),
        (1_000_000_000, 2, 1.0, 8.0),
        (2_000_000_000, 5, 1.0, 8.0),
        (1_000_000_000, 5, 0.5, 8.0),
        (1_000_000_000, 5, 1.0, 16.0),
        (10, 4, 0.5, 8e-9),
        (1_000_000_000, 32, 0.25, 8.0),
    ]
    drawn = [
        (
            int(rng.integers(1, 100)) * 1_000_000,
            int(workers),
            float(rng.uniform(5e-6, 5e-5)),
            float(rng.choice([25, 100, 400])),
        )
        for workers in rng.choice([3, 5, 6, 12, 24, 48], size=3, replace=False)
    ]
    many, short = int(rng.integers(600_000, 1_000_000)), float(rng.uniform(1e-7, 1e-6))
    large = int(rng.integers(1, 100)) * 10**12
    extremes = [(large, 7, 2.5e-5, 100.0), (large, many, short, 3200.0), (1000, many, short, 0.1), (4, 3, 1e-9, 2.5)]
    return tiny + drawn + extremes


def probe_reduce_scatter(names, seed):
    """On each ring the learner's chunks, what the network saw, and a worker's again where others hold other numbers.

    Of large chunks what shown() takes.
    """
    return {"rings": [_reduced(names["reduce_scatter"], buffers) for buffers in rings(seed)]}


def _reduced(reduce_scatter, buffers):
    network = KeepingNetwork(len(buffers))
    chunks = _chunks(reduce_scatter, buffers, network)
    among_others, sends_the_same, receives_the_same = [], [], []
    for worker, own in enumerate(buffers):
        again = KeepingNetwork(len(buffers), worker, network.carried)
        others = [own if place == worker else 2 * buffer + 1 for place, buffer in enumerate(buffers)]
        among_others.append(shown(_chunks(reduce_scatter, others, again)[worker]))
        sends_the_same.append(again.sent_by(worker) == network.sent_by(worker))
        receives_the_same.append(again.ways_to(worker) == network.ways_to(worker))
    second = _chunks(reduce_scatter, buffers, Network(len(buffers)))
    return {
        "shapes": [list(chunk.shape) for chunk in chunks],
        "chunks": [shown(chunk) for chunk in chunks],
        "among_others": among_others,
        "sends_the_same": sends_the_same,
        "receives_the_same": receives_the_same,
        "repeats": len(second) == len(chunks) and all(map(np.array_equal, chunks, second)),
        "sent_bytes": [network.sent_bytes(worker) for worker in range(len(buffers))],
        "hops": sorted({(message.target - message.source) % len(buffers) for message in network.messages}),
        "rounds": network.rounds,
    }


def _chunks(reduce_scatter, buffers, network):
    return [np.array(chunk) for chunk in reduce_scatter([buffer.copy() for buffer in buffers], network)]


def probe_learning_rate(names, seed):
    """The learner's rates along a warm-up; NaN where one divides by zero."""
    return {"rates": [_or_nan(names["learning_rate"], case) for case in warm_ups(seed)]}


def _or_nan(predict, case):
    try:
        return float(predict(*case))
    except ZeroDivisionError:
        return math.nan


def probe_all_reduce_seconds(names, seed):
    """The learner's predictions for every algorithm and link; NaN where one divides by zero."""
    predict = names["all_reduce_seconds"]
    return {name: [_or_nan(predict, (name, *link)) for link in links(seed)] for name in ALGORITHMS}


def probe_training(names, seed):
    """The state that the learner's own distributed run leaves behind."""
    x_train, y_train, x_test, _ = _split(names["load_data"])
    train_examples, seen, train_hashes = len(x_train), {*_rows(x_train)}, hashes(x_train)
    leaked, largest_class = _share_in(seen, x_test), int(y_train.max())
    del x_train, y_train
    strategy = mirrored_strategy()
    with counted_runs(strategy) as runs, watched_models(strategy) as rows_of, counted_updates() as updates:
        model, losses = names["train"](strategy, seed % 1000)
    copies, statistics = (
        [copies_of(strategy, variable) for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )
    _, _, x_test, y_test = _split(names["load_data"])
    leaked_later = _share_in(seen, x_test)
    largest_class = max(largest_class, int(y_test.max()))
    x_test, y_test = x_test[:LARGEST_FORWARD], y_test[:LARGEST_FORWARD].ravel()
    logits = np.asarray(model(x_test, training=False), "float64")
    losses = [float(loss) for loss in losses]
    compiled = int(copies_of(strategy, model.optimizer.iterations)[0])
    return {
        "wanted_replicas": strategy.num_replicas_in_sync,
        "replicas": min(len(values) for values in copies),
        "ran_on_replicas": runs() > 0,
        "given_strategy": all(
            getattr(one.value, "distribute_strategy", None) is strategy for one in model.trainable_variables
        ),
        "probabilities": bool(np.allclose(logits.sum(axis=-1), 1, atol=1e-3) and (logits >= 0).all()),
        **_reach(model, x_test, logits, seed),
        "output_shape": list(logits.shape[1:]),
        "classes": largest_class + 1,
        "identical": are_identical(copies),
        "statistics_identical": are_identical(statistics),
        "train_examples": train_examples,
        "steps_per_epoch": max(updates(), compiled) / max(len(losses), 1),
        "compiled_steps": compiled / max(len(losses), 1),
        "losses": losses,
        "validation_losses": _are_validation_losses(model, losses),
        "trained_on": rows_of(model, train_hashes),
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
        if y.shape not in ((len(x),), (len(x), 1)):
            line = f"y_{name} has the shape {y.shape}, and ({len(x)},) is wanted, or a column ({len(x)}, 1)"
            raise Stopped("raised", line, line)
        if y.dtype.kind not in "biuf" or (y.astype("int64") != y).any() or y.astype("int64").min() < 0:
            line = f"y_{name} holds other things than whole class numbers from 0"
            raise Stopped("raised", line, line)
    if smallest := int(parts[1].min()):
        line = f"the smallest class number in y_train is {smallest}, and classes are numbered from 0"
        raise Stopped("raised", line, line)
    return parts


def _reach(model, x_test, logits, seed):
    """The least and the largest output for test examples and large inputs, and how many of the latter end at 1 or -1.

    Where the model takes no such inputs, the test examples' alone.
    """
    rng = np.random.default_rng(seed)
    shape, least, largest = x_test[:64].shape, x_test.min(), x_test.max()
    if x_test.dtype.kind == "f":
        large = (1e3 * max(abs(least), abs(largest)) * rng.normal(size=shape)).astype(x_test.dtype)
    else:
        large = rng.integers(int(least), int(largest) + 1, size=shape).astype(x_test.dtype)
    try:
        far = np.asarray(model(large, training=False), "float64")
    except Exception:  # the learner's model may take no other numbers than its data's
        far = logits
    reached = np.nan_to_num(np.concatenate([logits.ravel(), far.ravel()]), nan=1e30, posinf=1e30, neginf=-1e30)
    return {
        "least_output": float(reached.min()),
        "largest_output": float(reached.max()),
        "outputs_at_1": float(np.mean(np.abs(np.abs(far) - 1) < 1e-3)),
    }


def _are_validation_losses(model, losses):
    """Whether the last of them are what the model's last `fit` found on validation data."""
    found = getattr(getattr(model, "history", None), "history", None)
    if not isinstance(found, dict) or losses[-len(found.get("loss", losses)) :] == found.get("loss"):
        return False
    return any(
        name.startswith("val_") and values and losses[-len(values) :] == values for name, values in found.items()
    )


def _rows(x):
    return [row.tobytes() for row in x.astype("float32")]


def _share_in(seen, x):
    return float(np.mean([row in seen for row in _rows(x)]))
