"""Exercise 02: a ring's first half, exact replicas, replicated state, a whole run.

Needs NumPy; TensorFlow to compare an answer with known mistakes.
"""

import math

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex02 as probes
from course_lib.exercises.question import Target

question = question_maker.of("02_data_parallelism")
FLOAT32 = 1e-5  # relative: a dozen products and sums in float32


def _chunks_complete(answers, seed):
    buffers = probes.ring_buffers(seed)
    wanted = np.split(np.sum(buffers, axis=0), len(buffers))
    shapes = [chunk.shape for chunk in answers["chunks"]]
    if shapes != [chunk.shape for chunk in wanted]:
        return f"the shapes are {shapes}, for {len(wanted)} workers and a buffer of {buffers[0].size}"
    wrong = [number for number, chunk in enumerate(wanted) if not np.array_equal(answers["chunks"][number], chunk)]
    return not wrong or f"worker {wrong[0]}'s chunk holds other numbers ({len(wrong)} of {len(wanted)} workers wrong)"


def _few_bytes(answers, seed):
    buffers = probes.ring_buffers(seed)
    workers, size = len(buffers), buffers[0].nbytes
    allowed = (workers - 1) * size // workers
    return answers["sent_bytes"] == [allowed] * workers or f"yours send {answers['sent_bytes']} B of {size} B"


def _to_the_right(answers, seed):
    if not answers["hops"]:
        return "yours sends no message"
    return answers["hops"] == [1] or f"yours go {' or '.join(map(str, answers['hops']))} workers to the right"


def _few_rounds(answers, seed):
    workers = len(probes.ring_buffers(seed))
    return answers["rounds"] == workers - 1 or f"{answers['rounds']} rounds for {workers} workers"


_CHUNKS = {"chunks": [forms.array], "sent_bytes": [forms.size], "hops": [forms.size], "rounds": forms.size}
REDUCE_SCATTER = question(
    name="q1",
    title="Reduce-scatter around a ring",
    asks_for=("reduce_scatter",),
    probe=probes.probe_reduce_scatter,
    form=_CHUNKS,
    targets=(
        Target("worker w returns chunk w of the sum", _chunks_complete),
        Target("every worker sends (N-1)/N of the buffer", _few_bytes),
        Target("N-1 rounds", _few_rounds),
        Target("every message goes one worker to the right", _to_the_right),
    ),
)


def _linear_run(answers, seed):
    """The linear model's weights and losses after the probe's steps, in NumPy."""
    weights, rate, steps = probes.linear_problem(seed, len(answers["weights"]))
    weights, losses = weights.astype("float64"), []
    for shards in steps:
        x, y = map(np.concatenate, zip(*shards))
        error = x @ weights - y
        losses.append((error**2).mean())
        weights = weights - rate * 2 * x.T @ error / len(x)
    return weights, losses


def _weights_exact(answers, seed):
    wanted, _ = _linear_run(answers, seed)
    if any(copy.shape != wanted.shape for copy in answers["weights"]):
        return "yours have another shape"
    off = np.abs(np.array(answers["weights"]) - wanted).max() / np.abs(wanted).max()
    return bool(off <= FLOAT32) or f"after an even and an uneven step yours are off by {100 * off:,.4g}%"


def _loss_exact(answers, seed):
    _, wanted = _linear_run(answers, seed)
    off = np.abs(np.array(answers["losses"]) / wanted - 1).max()
    return bool(off <= FLOAT32) or f"the sum of your replicas' losses is off by {100 * off:,.4g}%"


def _called_outside_its_context(answers, seed):
    error = answers.get("stopped", {}).get("error", "")
    return "cross-replica context" in error or "Mixing different tf.distribute.Strategy" in error


REPLICA_STEP = question(
    name="q2",
    title="One replica's part of a step",
    asks_for=("replica_step",),
    probe=probes.probe_replica_step,
    form={"weights": forms.each_replica(forms.array), "losses": (forms.number,) * 2},
    targets=(
        Target("every replica's weights equal one device's to 0.001%, also with unequal shards", _weights_exact),
        Target("the replicas' losses add up to the mean over the global batch, to 0.001%", _loss_exact),
    ),
    recognise={"strategy inside the step": _called_outside_its_context},
)


def _replicated(copies, what, replicas):
    fewest = min(copies)
    return fewest == replicas or f"{what} has {fewest} {'copy' if fewest == 1 else 'copies'}"


def _model_replicated(answers, seed):
    return _replicated(answers["model_copies"], "a weight of yours", answers["replicas"])


def _optimizer_replicated(answers, seed):
    if not answers["optimizer_built"]:
        return "the optimizer has no momentum variables yet"
    return _replicated(answers["optimizer_copies"], "an optimizer variable", answers["replicas"])


def _rows_divided(answers, seed):
    local, replicas, shapes = probes.local_batch(seed), answers["replicas"], answers["first_shapes"]
    return shapes == [[local, 3]] * replicas or (
        f"with a global batch of {local * replicas} on {replicas} replicas, the first step brings x of shape "
        + ", ".join(f"({', '.join(map(str, shape))})" for shape in shapes)
    )


def _every_example(answers, seed):
    wanted = probes.rows(seed, 4 * probes.local_batch(seed) * answers["replicas"])
    got = answers["examples"]
    if len(got) != len(wanted):
        return f"of {len(wanted)} examples, {len(got)} arrive as rows of a batch"
    return sorted(map(tuple, got)) == sorted(map(tuple, wanted)) or "they arrive with other values, or not once each"


def _model_outside(answers, seed):
    if "stopped" in answers:  # building the optimizer for such a model under the scope fails with these words
        return "only be passed a variable created in this tf.distribute.Strategy.scope()" in answers["stopped"]["error"]
    return min(answers["model_copies"]) == 1 < answers["replicas"]


_PREPARED = {
    "replicas": forms.replicas,
    **dict.fromkeys(("model_copies", "optimizer_copies"), [forms.count]),
    "optimizer_built": forms.flag,
    "first_shapes": [[forms.size]],
    "examples": [forms.array],
}
PREPARE = question(
    name="q3",
    title="Everything in its scope",
    asks_for=("prepare",),
    probe=probes.probe_prepare,
    form=_PREPARED,
    targets=(
        Target("every weight has one copy per replica", _model_replicated),
        Target("every optimizer variable has one copy per replica, and the optimizer is built", _optimizer_replicated),
        Target("a step brings every replica global_batch / N rows", _rows_divided),
        Target("every example arrives once in an epoch, unchanged", _every_example),
    ),
    recognise={"model outside": _model_outside},
)


def _rates_at(*places):
    def holds(answers, seed):
        for place in places:
            (step, one, replicas, warmup), rate = probes.warm_ups(seed)[place], answers["rates"][place]
            wanted = one + (replicas - 1) * one * min(step / warmup, 1)
            if not math.isclose(rate, wanted, rel_tol=1e-6):
                said = f"{rate / one:.3g} times the one-device rate"
                return f"at step {step} of a warm-up of {warmup}, {replicas} replicas, yours is {said}"
        return True

    return holds


LEARNING_RATE = question(
    name="q4",
    title="Scale the learning rate, with a warm-up",
    asks_for=("learning_rate",),
    probe=probes.probe_learning_rate,
    form={"rates": (forms.number,) * 5},
    targets=(
        Target("step 0 uses the one-device rate", _rates_at(0)),
        Target("in between the rate rises in a straight line", _rates_at(1, 2)),
        Target("from warmup_steps on it is N times the one-device rate", _rates_at(3, 4)),
    ),
)


def _seconds(algorithm, size_bytes, workers, latency, gigabits, levels=math.ceil):
    """The latency-bandwidth model; `levels` makes the tree's log2 of the workers a number of levels."""
    rounds = {"naive": workers - 1, "ring": workers - 1, "tree": levels(math.log2(workers))}[algorithm]
    message_bytes = size_bytes / workers if algorithm == "ring" else size_bytes
    return 2 * rounds * latency + 2 * rounds * message_bytes / (gigabits * 1e9 / 8)


def _predicted(algorithm):
    def holds(answers, seed):
        for link, seconds in zip(probes.links(seed), answers[algorithm], strict=True):
            off = seconds / _seconds(algorithm, *link) - 1
            if abs(off) > 1e-6:
                return f"for {link[0]:,} B, {link[1]} workers, {link[3]:g} Gbit/s yours is {100 * off:+,.4g}% off"
        return True

    return holds


def _levels_not_rounded_up(answers, seed):
    def fits(levels):
        wanted = {name: [_seconds(name, *link, levels) for link in probes.links(seed)] for name in probes.ALGORITHMS}
        return all(np.allclose(answers[name], wanted[name], rtol=1e-6, atol=0) for name in wanted)

    return fits(math.floor) or fits(float)


ALL_REDUCE_SECONDS = question(
    name="q5",
    title="Predict an all-reduce",
    asks_for=("all_reduce_seconds",),
    probe=probes.probe_all_reduce_seconds,
    form={name: [forms.number] for name in probes.ALGORITHMS},
    targets=tuple(
        Target(f"the {name}'s seconds, exactly as the model gives them", _predicted(name)) for name in probes.ALGORITHMS
    ),
    recognise={"level not rounded up": _levels_not_rounded_up},
)


def _on_all_replicas(answers, seed):
    if answers["replicas"] != answers["wanted_replicas"]:
        return f"a weight has {answers['replicas']} of {answers['wanted_replicas']} copies"
    return answers["identical"] or "the copies differ"


def _full_global_batches(answers, seed):
    return _steps_for_batch(answers, probes.GLOBAL_BATCH) or (
        f"{answers['train_examples']:,} examples took {answers['steps_per_epoch']:g} steps an epoch"
    )


def _loss_falls(answers, seed):
    losses = answers["losses"]
    falls = len(losses) > 1 and np.isfinite(losses).all() and losses[-1] < 0.8 * losses[0]
    return falls or f"your losses are {', '.join(f'{loss:.3g}' for loss in losses)}"


def _learned(answers, seed):
    return answers["accuracy"] >= answers["commonest"] + 0.2 or (
        f"yours is {answers['accuracy']:.1%}, and always answering the commonest class gives {answers['commonest']:.1%}"
    )


def _nothing_leaked(answers, seed):
    return answers["leaked"] <= 0.01 or f"{answers['leaked']:.0%} of the test examples are also training examples"


def _steps_for_batch(answers, batch):
    full = answers["train_examples"] / batch
    return answers["steps_per_epoch"] > 0 and answers["steps_per_epoch"] in (math.floor(full), math.ceil(full))


def _some_held_out(answers, seed):
    full = answers["train_examples"] / probes.GLOBAL_BATCH
    return full / 2 < answers["steps_per_epoch"] < math.floor(full)


def _not_settled(answers, seed):
    learns = _loss_falls(answers, seed) is True
    return learns and not answers["statistics_identical"] and _learned(answers, seed) is not True


_TRAINED = {
    "wanted_replicas": forms.replicas,
    "replicas": forms.count,
    **dict.fromkeys(("identical", "statistics_identical"), forms.flag),
    "train_examples": forms.size,
    "steps_per_epoch": forms.number,
    "losses": [forms.any_number],
    **dict.fromkeys(("accuracy", "commonest", "leaked"), forms.share),
}
OWN_RUN = question(
    name="q6",
    title="Your model, your data, four replicas",
    asks_for=("load_data", "train"),
    probe=probes.probe_training,
    form=_TRAINED,
    targets=(
        Target("the model trains on all replicas, with identical copies of every trained weight", _on_all_replicas),
        Target("one optimizer step per global batch of 128", _full_global_batches),
        Target("the last epoch's loss is below 0.8 of the first's", _loss_falls),
        Target("test accuracy at least 20 points above the commonest class", _learned),
        Target("no more than 1% of the test examples are also in the training data", _nothing_leaked),
    ),
    recognise={
        "outside the scope": lambda answers, seed: answers["replicas"] == 1 < answers["wanted_replicas"],
        "local batch of 128": lambda answers, seed: _steps_for_batch(
            answers, probes.GLOBAL_BATCH * answers["wanted_replicas"]
        ),
        "batch divided by hand": lambda answers, seed: _steps_for_batch(
            answers, probes.GLOBAL_BATCH // answers["wanted_replicas"]
        ),
        "examples held out": _some_held_out,
        "tested on training data": lambda answers, seed: answers["leaked"] > 0.01,
        "normalisation not settled": _not_settled,
    },
    takes_long=True,
)

QUESTIONS = (REDUCE_SCATTER, REPLICA_STEP, PREPARE, LEARNING_RATE, ALL_REDUCE_SECONDS, OWN_RUN)
