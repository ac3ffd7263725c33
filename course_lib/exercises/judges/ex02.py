"""Exercise 02: a ring's first half, exact replicas, replicated state, a whole run.

Needs NumPy; TensorFlow to compare an answer with known mistakes.
"""

import math

import numpy as np

from course_lib.exercises.judges import forms, published
from course_lib.exercises.probes import ex02 as probes
from course_lib.exercises.question import Mistake, Question, Target

ANSWERS = published.answers("02_data_parallelism")
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


REDUCE_SCATTER = Question(
    name="q1",
    title="Reduce-scatter around a ring",
    asks_for=("reduce_scatter",),
    probe=probes.probe_reduce_scatter,
    answer=ANSWERS["q1"],
    targets=(
        Target("worker w returns chunk w of the sum", _chunks_complete),
        Target("every worker sends (N-1)/N of the buffer", _few_bytes),
        Target("N-1 rounds", _few_rounds),
        Target("every message goes one worker to the right", _to_the_right),
    ),
    mistakes=(
        Mistake(
            "chunk of the neighbour",
            "Your chunks are complete, but each worker returns the chunk after its own.",
            "Worker w must finish chunk w: which chunk does it have to send first, so that chunk w reaches it last?",
            edit={"w - 1 - step": "w - step", "chunks[w][w]": "chunks[w][(w + 1) % workers]"},
        ),
        Mistake(
            "another's chunk",
            "Chunk w on worker w is not complete: another worker finished it.",
            "In the lesson worker w ends with chunk w + 1. Which chunk must it send first to end with its own?",
            edit={"w - 1 - step": "w - step"},
        ),
        Mistake(
            "network unused",
            "The sum is there, but nothing was sent for it.",
            "Send through the `network` that you are given.",
            edit={"range(workers - 1)": "range(0)", "chunks[w][w]": "sum(own[w] for own in chunks)"},
        ),
        Mistake(
            "whole buffers",
            "You send whole buffers around the ring, so every worker sends N times what is needed.",
            "How much of a buffer does the next worker need in this round?",
            edit={
                "right, chunks[w][chunk])": "right, np.concatenate(chunks[w]))",
                "+ array": "+ np.split(array, workers)[chunk]",
            },
        ),
        Mistake(
            "stored, not added",
            "A received chunk replaces the local one, so the numbers of the workers on its way are lost.",
            "The line after `exchange`: in the reduce half of the ring the receiver adds.",
            edit={"chunks[right][chunk] + array": "array"},
        ),
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


REPLICA_STEP = Question(
    name="q2",
    title="One replica's part of a step",
    asks_for=("replica_step",),
    probe=probes.probe_replica_step,
    answer=ANSWERS["q2"],
    targets=(
        Target("every replica's weights equal one device's to 0.001%, also with unequal shards", _weights_exact),
        Target("the replicas' losses add up to the mean over the global batch, to 0.001%", _loss_exact),
    ),
    mistakes=(
        Mistake(
            "local mean",
            "Your step is N times too long: each replica hands over a gradient that is already a mean.",
            "`apply_gradients` sums what the replicas hand over. Which parts add up to one mean over all rows?",
            edit={"/ all_rows": "/ rows"},
        ),
        Mistake(
            "mean of means",
            "You divide by your own rows times the number of replicas, the global batch only for equal shards.",
            "A replica with one row counts as much as one with five. How many rows do the others have?",
            edit={"/ all_rows": "/ rows / context.num_replicas_in_sync"},
        ),
        Mistake(
            "summed twice",
            "The gradients are summed over the replicas twice: by you, and again by the optimizer.",
            "Give `apply_gradients` the local gradients; it does the all-reduce.",
            edit={"zip(gradients,": 'zip(context.all_reduce("SUM", gradients),'},
        ),
        Mistake(
            "local mean returned",
            "The weights are right, but you return the local mean, and those do not add up to the global one.",
            "Return the loss that you differentiate: a part of the global mean.",
            edit={"return loss": "return loss * all_rows / rows"},
        ),
        Mistake(
            "global loss returned",
            "The weights are right, but every replica returns the whole loss, so that they add up to N times it.",
            "Return this replica's part before any all-reduce of the loss.",
            edit={"return loss": 'return context.all_reduce("SUM", loss)'},
        ),
        Mistake(
            "strategy inside the step",
            "You call a strategy's own method inside the step, where only one replica is in sight.",
            "Inside `strategy.run` ask `tf.distribute.get_replica_context()`.",
            recognise=_called_outside_its_context,
            edit={"return loss": 'return tf.distribute.get_strategy().reduce("SUM", loss, axis=None)'},
        ),
    ),
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


PREPARE = Question(
    name="q3",
    title="Everything in its scope",
    asks_for=("prepare",),
    probe=probes.probe_prepare,
    answer=ANSWERS["q3"],
    targets=(
        Target("every weight has one copy per replica", _model_replicated),
        Target("every optimizer variable has one copy per replica, and the optimizer is built", _optimizer_replicated),
        Target("a step brings every replica global_batch / N rows", _rows_divided),
        Target("every example arrives once in an epoch, unchanged", _every_example),
    ),
    mistakes=(
        Mistake(
            "model outside",
            "Your model's weights have one copy: it would train on one replica.",
            "Where was the scope open when the weights were made?",
            recognise=_model_outside,
            edit={"with strategy.scope()": "if True"},
        ),
        Mistake(
            "optimizer outside",
            "The weights are replicated, and the optimizer's variables are not.",
            "Which of your lines make the optimizer's variables, and is the scope open there?",
            edit={
                "        optimizer = make_optimizer()\n        optimizer.build": (
                    "    optimizer = make_optimizer()\n    optimizer.build"
                )
            },
        ),
        Mistake(
            "optimizer not built",
            "The optimizer has no momentum variables. Made later, inside a tf.function, they break the step.",
            "Which variables does momentum need, and who makes them, when?",
            edit={"        optimizer.build(model.trainable_variables)\n": ""},
        ),
        Mistake(
            "global batch to each",
            "Every replica takes a whole global batch, so a step sees N times the rows that you meant.",
            "`distribute_datasets_from_function` trusts your batch size; `experimental_distribute_dataset` divides it.",
            edit={"experimental_distribute_dataset(": "distribute_datasets_from_function(lambda _: "},
        ),
        Mistake(
            "divided twice",
            "Your batches are divided twice: once by you and once by the strategy.",
            "`experimental_distribute_dataset` wants batches of the global size.",
            edit={"batch(global_batch)": "batch(global_batch // strategy.num_replicas_in_sync)"},
        ),
    ),
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


LEARNING_RATE = Question(
    name="q4",
    title="Scale the learning rate, with a warm-up",
    asks_for=("learning_rate",),
    probe=probes.probe_learning_rate,
    answer=ANSWERS["q4"],
    targets=(
        Target("step 0 uses the one-device rate", _rates_at(0)),
        Target("in between the rate rises in a straight line", _rates_at(1, 2)),
        Target("from warmup_steps on it is N times the one-device rate", _rates_at(3, 4)),
    ),
    mistakes=(
        Mistake(
            "no warm-up",
            "You use the scaled rate from the first step on.",
            "Before warmup_steps the rate lies between the one-device rate and the scaled one.",
            edit={"(1 + (replicas - 1) * done)": "replicas"},
        ),
        Mistake(
            "starts at zero",
            "Your warm-up starts at zero, so the first step changes nothing.",
            "Rise from the one-device rate, which is known to work.",
            edit={"(1 + (replicas - 1) * done)": "replicas * done"},
        ),
        Mistake(
            "square root",
            "You scale by the square root of N. That is another recipe; this one asks for the linear rule.",
            "Linear: twice the replicas, twice the rate. What does that make N replicas?",
            edit={"replicas - 1": "replicas**0.5 - 1"},
        ),
        Mistake(
            "never stops",
            "Your rate goes on rising after the warm-up.",
            "Limit the share of the warm-up that is done to 1.",
            edit={"min(step / warmup_steps, 1.0)": "step / warmup_steps"},
        ),
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


ALL_REDUCE_SECONDS = Question(
    name="q5",
    title="Predict an all-reduce",
    asks_for=("all_reduce_seconds",),
    probe=probes.probe_all_reduce_seconds,
    answer=ANSWERS["q5"],
    targets=tuple(
        Target(f"the {name}'s seconds, exactly as the model gives them", _predicted(name)) for name in probes.ALGORITHMS
    ),
    mistakes=(
        Mistake(
            "bits taken for bytes",
            "You divide bytes by bits per second: eight times too fast.",
            "A network of 100 Gbit/s carries 12.5 GB a second.",
            edit={"8 * message_bytes": "message_bytes"},
        ),
        Mistake(
            "one way",
            "You count half of the rounds: the sum must also come back to every worker.",
            "Naive and ring need 2(N-1) rounds, the tree twice its levels.",
            edit={"rounds = 2 * ": "rounds = "},
        ),
        Mistake(
            "level not rounded up",
            "Your tree has too few levels, or a part of one, when N is not a power of two.",
            "Draw the tree of five workers: how many levels has it? And of eight?",
            recognise=_levels_not_rounded_up,
            edit={"(workers - 1).bit_length()": "workers.bit_length() - 1"},
        ),
        Mistake(
            "latency left out",
            "You count the bytes and not the latency, which every round pays.",
            "A round costs the latency plus the message.",
            edit={"(latency_seconds + message_seconds)": "message_seconds"},
        ),
        Mistake(
            "ring of whole buffers",
            "Your ring passes whole buffers, and a ring passes chunks.",
            "A message of the ring is 1/N of the buffer.",
            edit={' / (workers if algorithm == "ring" else 1)': ""},
        ),
    ),
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


OWN_RUN = Question(
    name="q6",
    title="Your model, your data, four replicas",
    asks_for=("load_data", "train"),
    probe=probes.probe_training,
    answer=ANSWERS["q6"],
    targets=(
        Target("the model trains on all replicas, with identical copies of every trained weight", _on_all_replicas),
        Target("one optimizer step per global batch of 128", _full_global_batches),
        Target("the last epoch's loss is below 0.8 of the first's", _loss_falls),
        Target("test accuracy at least 20 points above the commonest class", _learned),
        Target("no more than 1% of the test examples are also in the training data", _nothing_leaked),
    ),
    mistakes=(
        Mistake(
            "outside the scope",
            "Your model trains on one replica; the others are idle.",
            "Make and compile the model under `strategy.scope()`, where strategy is the argument.",
            recognise=lambda answers, seed: answers["replicas"] == 1 < answers["wanted_replicas"],
            edit={"with strategy.scope()": "if True"},
        ),
        Mistake(
            "local batch of 128",
            "A step takes 128 rows on every replica, so the global batch is N times too large.",
            "The batch size that `fit` or a plain dataset gets is the global one.",
            recognise=lambda answers, seed: _steps_for_batch(answers, probes.GLOBAL_BATCH * answers["wanted_replicas"]),
            edit={"batch_size=128": "batch_size=128 * strategy.num_replicas_in_sync"},
        ),
        Mistake(
            "batch divided by hand",
            "A step takes 128 / N rows over all replicas: you divided the batch, and the strategy divides it again.",
            "Give `fit` batches of 128; the strategy makes the shards.",
            recognise=lambda answers, seed: _steps_for_batch(
                answers, probes.GLOBAL_BATCH // answers["wanted_replicas"]
            ),
            edit={"batch_size=128": "batch_size=128 // strategy.num_replicas_in_sync"},
        ),
        Mistake(
            "examples held out",
            "An epoch has fewer steps than your training data fill: some of them are held out.",
            "Train on all of x_train; `validation_split` takes its share away.",
            recognise=_some_held_out,
            edit={"batch_size=128": "batch_size=128, validation_split=0.25"},
        ),
        Mistake(
            "tested on training data",
            "Your test examples are also training examples, so the accuracy says nothing.",
            "Split before you train, and return disjoint arrays from `load_data`.",
            recognise=lambda answers, seed: answers["leaked"] > 0.01,
            edit={'data.arrays("digits", "test")': 'data.arrays("digits", "train")'},
        ),
        Mistake(
            "normalisation not settled",
            "The loss falls, but the model tests badly: its batch normalisation has not settled.",
            "A test uses the layer's moving averages. How many steps do they need, and how many do you take?",
            recognise=_not_settled,
            edit={  # the layer's moving mean starts at 0, and its inputs are about 10
                "models.mlp((8, 8, 1), 10, seed=seed)": (
                    "keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Rescaling(1.0, offset=10.0), "
                    "keras.layers.BatchNormalization(), models.mlp((8, 8, 1), 10, seed=seed)])"
                )
            },
        ),
    ),
)

_CHUNKS = {"chunks": [forms.array], "sent_bytes": [forms.size], "hops": [forms.size], "rounds": forms.size}
_PREPARED = {
    "replicas": forms.replicas,
    **dict.fromkeys(("model_copies", "optimizer_copies"), [forms.count]),
    "optimizer_built": forms.flag,
    "first_shapes": [[forms.size]],
    "examples": [forms.array],
}
_TRAINED = {
    "wanted_replicas": forms.replicas,
    "replicas": forms.count,
    **dict.fromkeys(("identical", "statistics_identical"), forms.flag),
    "train_examples": forms.size,
    "steps_per_epoch": forms.number,
    "losses": [forms.any_number],
    **dict.fromkeys(("accuracy", "commonest", "leaked"), forms.share),
}
QUESTIONS = (
    forms.formed(REDUCE_SCATTER, _CHUNKS),
    forms.formed(REPLICA_STEP, {"weights": forms.each_replica(forms.array), "losses": (forms.number,) * 2}),
    forms.formed(PREPARE, _PREPARED),
    forms.formed(LEARNING_RATE, {"rates": (forms.number,) * 5}),
    forms.formed(ALL_REDUCE_SECONDS, {name: [forms.number] for name in probes.ALGORITHMS}),
    forms.formed(OWN_RUN, _TRAINED),
)
