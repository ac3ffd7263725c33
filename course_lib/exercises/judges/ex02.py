"""Exercise 02: a ring's first half, exact replicas, replicated state, a whole run.

Needs NumPy; the wrong answers of q2, q3 and q6 need TensorFlow when they run.
"""

import math

import numpy as np

from course_lib.exercises.judges import forms
from course_lib.exercises.probes import ex02 as probes
from course_lib.exercises.question import Mistake, Question, Target

FLOAT32 = 1e-5  # relative: a dozen products and sums in float32


# q1: reduce-scatter


def _chunks_complete(answers, seed):
    buffers = probes.ring_buffers(seed)
    wanted = np.split(np.sum(buffers, axis=0), len(buffers))
    shapes = [chunk.shape for chunk in answers["chunks"]]
    if shapes != [chunk.shape for chunk in wanted]:
        return f"the shapes are {shapes}, for {len(wanted)} workers and a buffer of {sum(c.size for c in wanted)}"
    wrong = [
        worker for worker, pair in enumerate(zip(answers["chunks"], wanted, strict=True)) if not np.array_equal(*pair)
    ]
    return not wrong or f"worker {wrong[0]}'s chunk holds other numbers ({len(wrong)} of {len(wanted)} workers wrong)"


def _few_bytes(answers, seed):
    buffer, *others = probes.ring_buffers(seed)
    workers = 1 + len(others)
    allowed = (workers - 1) * buffer.nbytes // workers
    return answers["sent_bytes"] == [allowed] * workers or f"yours send {answers['sent_bytes']} B of {buffer.nbytes} B"


def _to_the_right(answers, seed):
    if not answers["hops"]:
        return "yours sends no message"
    return answers["hops"] == [1] or f"yours go {' or '.join(map(str, answers['hops']))} workers to the right"


def _few_rounds(answers, seed):
    workers = len(probes.ring_buffers(seed))
    return answers["rounds"] == workers - 1 or f"{answers['rounds']} rounds for {workers} workers"


def _reduce_scatter(first=-1, whole=False, add=True, rounds=-1, keep=0):
    """The solution, with one thing wrong: see the mistakes for which."""

    def reduce_scatter(buffers, network):
        workers = len(buffers)
        chunks = [np.split(buffer, workers) for buffer in buffers]
        for step in range(workers + rounds):
            moves = [(w, (w + 1) % workers, (w + first - step) % workers) for w in range(workers)]
            payloads = [np.concatenate(chunks[w]) if whole else chunks[w][chunk] for w, _, chunk in moves]
            received = network.exchange([(w, to, payload) for (w, to, _), payload in zip(moves, payloads)])
            for (_, to, chunk), array in zip(moves, received):
                part = np.split(array, workers)[chunk] if whole else array
                chunks[to][chunk] = chunks[to][chunk] + part if add else part
        return [chunks[w][(w + keep) % workers] for w in range(workers)]

    return reduce_scatter


def _all_to_all(buffers, network):
    """Right sums by another way: in round s every worker sends straight to the one s places on."""
    workers = len(buffers)
    chunks = [np.split(buffer, workers) for buffer in buffers]
    sums = [chunks[w][w].copy() for w in range(workers)]
    for step in range(1, workers):
        moves = [(w, (w + step) % workers) for w in range(workers)]
        for (_, to), array in zip(moves, network.exchange([(w, to, chunks[w][to]) for w, to in moves])):
            sums[to] += array
    return sums


REDUCE_SCATTER = Question(
    name="q1",
    title="Reduce-scatter around a ring",
    asks_for=("reduce_scatter",),
    probe=probes.probe_reduce_scatter,
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
            _reduce_scatter(first=0, keep=1),
        ),
        Mistake(
            "another's chunk",
            "Chunk w on worker w is not complete: another worker finished it.",
            "In the lesson worker w ends with chunk w + 1. Which chunk must it send first to end with its own?",
            _reduce_scatter(first=0),
        ),
        Mistake(
            "network unused",
            "The sum is there, but nothing was sent for it.",
            "Send through the `network` that you are given.",
            lambda buffers, network: np.split(np.sum(buffers, axis=0), len(buffers)),
        ),
        Mistake(
            "all to all",
            "Your chunks are right and as cheap, but they go straight to their owners, not around a ring.",
            "On a ring a worker has one neighbour to send to, and the sum grows on its way.",
            _all_to_all,
        ),
        Mistake(
            "whole buffers",
            "You send whole buffers around the ring, so every worker sends N times what is needed.",
            "How much of a buffer does the next worker need in this round?",
            _reduce_scatter(whole=True),
        ),
        Mistake(
            "stored, not added",
            "A received chunk replaces the local one, so the numbers of the workers on its way are lost.",
            "The line after `exchange`: in the reduce half of the ring the receiver adds.",
            _reduce_scatter(add=False),
        ),
        Mistake(
            "one round short",
            "You stop one round early: a chunk has met all workers but one.",
            "A chunk that starts on one worker visits the N-1 others.",
            _reduce_scatter(rounds=-2),
        ),
    ),
)


# q2: a replica's part of a step


def _all_rows(local, total, replicas):
    return total


def _own_rows(local, total, replicas):
    return local


def _linear_run(seed, replicas, divisor=_all_rows, shown=None):
    """The linear model's weights and losses after the probe's steps, in NumPy.

    divisor  (local rows, all rows, replicas) -> what a replica divides the sum of its losses by
    shown    the same for the loss that it returns; the divisor, unless given
    """
    weights, rate, steps = probes.linear_problem(seed, replicas)
    weights, losses = weights.astype("float64"), []
    for shards in steps:
        total = sum(len(x) for x, _ in shards)
        sizes = [(len(x), total, replicas) for x, _ in shards]
        errors = [x @ weights - y for x, y in shards]
        losses.append(sum((error**2).sum() / (shown or divisor)(*size) for error, size in zip(errors, sizes)))
        parts = [2 * x.T @ error / divisor(*size) for (x, _), error, size in zip(shards, errors, sizes)]
        weights = weights - rate * sum(parts)
    return weights, losses


def _linear_run_is(divisor, shown=None):
    """Recognise the weights and losses that a step with this divisor gives."""

    def recognise(answers, seed):
        weights, losses = _linear_run(seed, len(answers["weights"]), divisor, shown)
        return np.allclose(answers["weights"], weights, rtol=1e-4) and np.allclose(answers["losses"], losses, rtol=1e-4)

    return recognise


def _weights_exact(answers, seed):
    wanted, _ = _linear_run(seed, len(answers["weights"]))
    if any(copy.shape != wanted.shape for copy in answers["weights"]):
        return "yours have another shape"
    off = np.abs(np.array(answers["weights"]) - wanted).max() / np.abs(wanted).max()
    return bool(off <= FLOAT32) or f"after an even and an uneven step yours are off by {100 * off:,.4g}%"


def _loss_exact(answers, seed):
    _, wanted = _linear_run(seed, len(answers["weights"]))
    off = np.abs(np.array(answers["losses"]) / wanted - 1).max()
    return bool(off <= FLOAT32) or f"the sum of your replicas' losses is off by {100 * off:,.4g}%"


def _replica_step(divisor, shown=None):
    """A step that divides by divisor(local rows, all rows, replicas), and what it returns by shown of them."""

    def replica_step(model, optimizer, x, y):
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        rows = tf.cast(tf.shape(x)[0], tf.float32)
        sizes = rows, context.all_reduce("SUM", rows), float(context.num_replicas_in_sync)
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(tf.square(model(x) - y))
            loss = total / divisor(*sizes)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return total / (shown or divisor)(*sizes)

    return replica_step


def _divides(divisor, shown=None):
    """The wrong step and how to recognise it."""
    return _replica_step(divisor, shown), _linear_run_is(divisor, shown)


def _returns_the_global_loss(model, optimizer, x, y):
    import tensorflow as tf

    part = _replica_step(_all_rows)(model, optimizer, x, y)
    return tf.distribute.get_replica_context().all_reduce("SUM", part)


def _global_loss_on_each(answers, seed):
    weights, losses = _linear_run(seed, len(answers["weights"]))
    times = len(answers["weights"])
    summed = np.multiply(times, losses)
    return np.allclose(answers["weights"], weights, rtol=1e-4) and np.allclose(answers["losses"], summed, rtol=1e-4)


def _reduces_by_strategy(model, optimizer, x, y):
    import tensorflow as tf

    return tf.distribute.get_strategy().reduce("SUM", tf.reduce_sum(tf.square(model(x) - y)), axis=None)


def _called_outside_its_context(answers, seed):
    error = answers.get("stopped", {}).get("error", "")
    return "cross-replica context" in error or "Mixing different tf.distribute.Strategy" in error


REPLICA_STEP = Question(
    name="q2",
    title="One replica's part of a step",
    asks_for=("replica_step",),
    probe=probes.probe_replica_step,
    targets=(
        Target("every replica's weights equal one device's to 0.001%, also with unequal shards", _weights_exact),
        Target("the replicas' losses add up to the mean over the global batch, to 0.001%", _loss_exact),
    ),
    mistakes=(
        Mistake(
            "local mean",
            "Your step is N times too long: each replica hands over a gradient that is already a mean.",
            "`apply_gradients` sums what the replicas hand over. Which parts add up to one mean over all rows?",
            *_divides(_own_rows),
        ),
        Mistake(
            "mean of means",
            "You divide by your own rows times the number of replicas, which is the global batch only for equal shards.",
            "A replica with one row counts as much as one with five. How many rows do the others have?",
            *_divides(lambda local, total, replicas: local * replicas),
        ),
        Mistake(
            "no mean",
            "You sum the losses and divide by nothing, so the step grows with the batch.",
            "The loss is the mean over the global batch.",
            *_divides(lambda local, total, replicas: 1.0),
        ),
        Mistake(
            "summed twice",
            "The gradients are summed over the replicas twice: by you, and again by the optimizer.",
            "Give `apply_gradients` the local gradients; it does the all-reduce.",
            *_divides(lambda local, total, replicas: total / replicas, shown=_all_rows),
        ),
        Mistake(
            "local mean returned",
            "The weights are right, but you return the local mean, and those do not add up to the global one.",
            "Return the loss that you differentiate: a part of the global mean.",
            *_divides(_all_rows, shown=_own_rows),
        ),
        Mistake(
            "global loss returned",
            "The weights are right, but every replica returns the whole loss, so that they add up to N times it.",
            "Return this replica's part before any all-reduce of the loss.",
            _returns_the_global_loss,
            _global_loss_on_each,
        ),
        Mistake(
            "strategy inside the step",
            "You call a strategy's own method inside the step, where only one replica is in sight.",
            "Inside `strategy.run` ask `tf.distribute.get_replica_context()`.",
            _reduces_by_strategy,
            _called_outside_its_context,
        ),
    ),
)


# q3: everything in its scope


def _model_replicated(answers, seed):
    fewest = min(answers["model_copies"])
    return fewest == answers["replicas"] or f"a weight of yours has {fewest} cop{'y' if fewest == 1 else 'ies'}"


def _optimizer_replicated(answers, seed):
    if not answers["optimizer_built"]:
        return "the optimizer has no momentum variables yet"
    fewest = min(answers["optimizer_copies"])
    return fewest == answers["replicas"] or f"an optimizer variable has {fewest} cop{'y' if fewest == 1 else 'ies'}"


def _rows_divided(answers, seed):
    local, replicas, shapes = probes.local_batch(seed), answers["replicas"], answers["first_shapes"]
    return shapes == [[local, 3]] * replicas or (
        f"with a global batch of {local * replicas} on {replicas} replicas, the first step brings x of shape "
        + ", ".join(f"({', '.join(map(str, shape))})" for shape in shapes)
    )


def _model_outside(answers, seed):
    if "stopped" in answers:  # building the optimizer for such a model under the scope fails with these words
        return "only be passed a variable created in this tf.distribute.Strategy.scope()" in answers["stopped"]["error"]
    return min(answers["model_copies"]) == 1 < answers["replicas"]


def _every_example(answers, seed):
    wanted = probes.rows(seed, 4 * probes.local_batch(seed) * answers["replicas"])
    got = answers["examples"]
    if len(got) != len(wanted):
        return f"of {len(wanted)} examples, {len(got)} arrive as rows of a batch"
    return sorted(map(tuple, got)) == sorted(map(tuple, wanted)) or "they arrive with other values, or not once each"


def _not_batched(answers, seed):
    return all(len(shape) < 2 for shape in answers["first_shapes"])


def _prepare(distribute, model_in=True, optimizer_in=True, build=True):
    """The solution with its own way to distribute the examples, and perhaps one thing outside the scope."""

    def prepare(strategy, make_model, make_optimizer, examples, global_batch):
        import contextlib

        def scope(inside):
            return strategy.scope() if inside else contextlib.nullcontext()

        with scope(model_in):
            model = make_model()
        with scope(optimizer_in):
            optimizer = make_optimizer()
            if build:
                optimizer.build(model.trainable_variables)
        return model, optimizer, distribute(strategy, examples, global_batch)

    return prepare


def _divided(strategy, examples, global_batch):
    return strategy.experimental_distribute_dataset(examples.batch(global_batch))


def _divided_twice(strategy, examples, global_batch):
    return _divided(strategy, examples, global_batch // strategy.num_replicas_in_sync)


def _trusted(strategy, examples, global_batch):
    return strategy.distribute_datasets_from_function(lambda context: examples.batch(global_batch))


PREPARE = Question(
    name="q3",
    title="Everything in its scope",
    asks_for=("prepare",),
    probe=probes.probe_prepare,
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
            _prepare(_divided, model_in=False, optimizer_in=False),
            _model_outside,
        ),
        Mistake(
            "optimizer outside",
            "The weights are replicated, and the optimizer's variables are not.",
            "Which of your lines make the optimizer's variables, and is the scope open there?",
            _prepare(_divided, optimizer_in=False),
        ),
        Mistake(
            "optimizer not built",
            "The optimizer has no momentum variables. Made later, inside a tf.function, they break the step.",
            "Which variables does momentum need, and who makes them, when?",
            _prepare(_divided, build=False),
        ),
        Mistake(
            "global batch to each",
            "Every replica takes a whole global batch, so a step sees N times the rows that you meant.",
            "`distribute_datasets_from_function` trusts your batch size; `experimental_distribute_dataset` divides it.",
            _prepare(_trusted),
        ),
        Mistake(
            "divided twice",
            "Your batches are divided twice: once by you and once by the strategy.",
            "`experimental_distribute_dataset` wants batches of the global size.",
            _prepare(_divided_twice),
        ),
        Mistake(
            "not batched",
            "Your dataset yields single examples, not batches.",
            "The docstring says what `examples` holds: who makes batches of it, and of which size?",
            _prepare(lambda strategy, examples, global_batch: strategy.experimental_distribute_dataset(examples)),
            _not_batched,
        ),
        Mistake(
            "not distributed",
            "Your dataset is an ordinary one: the whole batch arrives in one piece.",
            "A strategy has a method that divides a dataset of batches.",
            _prepare(lambda strategy, examples, global_batch: examples.batch(global_batch)),
            lambda answers, seed: len(answers["first_shapes"]) == 1 < answers["replicas"],
        ),
    ),
)


# q4: the learning rate


def _rate(step, one_device_rate, replicas, warmup_steps):
    done = min(step / warmup_steps, 1)
    return one_device_rate * (1 + (replicas - 1) * done)


def _rates_at(places, of):
    def holds(answers, seed):
        for place in places:
            case, rate = probes.warm_ups(seed)[place], answers["rates"][place]
            if not math.isclose(rate, _rate(*case), rel_tol=1e-6):
                return f"at step {case[0]} of a warm-up of {case[3]}, {case[2]} replicas, yours is {rate / case[1]:.3g} {of}"
        return True

    return holds


LEARNING_RATE = Question(
    name="q4",
    title="Scale the learning rate, with a warm-up",
    asks_for=("learning_rate",),
    probe=probes.probe_learning_rate,
    targets=(
        Target("step 0 uses the one-device rate", _rates_at([0], "times the one-device rate")),
        Target("in between the rate rises in a straight line", _rates_at([1, 2], "times the one-device rate")),
        Target(
            "from warmup_steps on it is N times the one-device rate", _rates_at([3, 4], "times the one-device rate")
        ),
    ),
    mistakes=(
        Mistake(
            "no warm-up",
            "You use the scaled rate from the first step on.",
            "Before warmup_steps the rate lies between the one-device rate and the scaled one.",
            lambda step, rate, replicas, warmup: rate * replicas,
        ),
        Mistake(
            "starts at zero",
            "Your warm-up starts at zero, so the first step changes nothing.",
            "Rise from the one-device rate, which is known to work.",
            lambda step, rate, replicas, warmup: rate * replicas * min(step / warmup, 1),
        ),
        Mistake(
            "square root",
            "You scale by the square root of N. The square-root rule is another recipe; this one asks for the linear rule.",
            "Linear: twice the replicas, twice the rate. What does that make N replicas?",
            lambda step, rate, replicas, warmup: rate * (1 + (replicas**0.5 - 1) * min(step / warmup, 1)),
        ),
        Mistake(
            "never stops",
            "Your rate goes on rising after the warm-up.",
            "Limit the share of the warm-up that is done to 1.",
            lambda step, rate, replicas, warmup: rate * (1 + (replicas - 1) * step / warmup),
        ),
        Mistake(
            "one step ahead",
            "Your warm-up is one step ahead: step 0 already uses more than the one-device rate.",
            "Step 0 is the first step; at step 0 nothing of the warm-up is done.",
            lambda step, rate, replicas, warmup: rate * (1 + (replicas - 1) * min((step + 1) / warmup, 1)),
        ),
        Mistake(
            "geometric",
            "Your rate grows by a constant factor; the warm-up is a straight line.",
            "Half-way through the warm-up the rate is half-way between the two rates.",
            lambda step, rate, replicas, warmup: rate * replicas ** min(step / warmup, 1),
        ),
        Mistake(
            "too high by one rate",
            "At the end you reach N + 1 times the one-device rate.",
            "You start at one rate and end at N of them: how much is there to rise?",
            lambda step, rate, replicas, warmup: rate * (1 + replicas * min(step / warmup, 1)),
        ),
    ),
)


# q5: predict an all-reduce


def _seconds(
    algorithm, size_bytes, workers, latency, gigabits, bits=8, ways=2, log=math.ceil, chunks=None, latencies=None
):
    """The latency-bandwidth model; the later arguments are what mistakes change."""
    rounds = ways * (log(math.log2(workers)) if algorithm == "tree" else workers - 1)
    message_bytes = size_bytes / (chunks or workers) if algorithm == "ring" else size_bytes
    latencies = rounds if latencies is None else latencies
    return latencies * latency + rounds * message_bytes * bits / (gigabits * 1e9)


def _predicted(algorithm):
    def holds(answers, seed):
        for link, seconds in zip(probes.links(seed), answers[algorithm], strict=True):
            off = seconds / _seconds(algorithm, *link) - 1
            if abs(off) > 1e-6:
                return f"for {link[0]:,} B, {link[1]} workers, {link[3]:g} Gbit/s yours is {100 * off:+,.4g}% off"
        return True

    return holds


def _levels_by(answers, seed, log):
    return all(
        np.allclose(answers[name], [_seconds(name, *link, log=log) for link in probes.links(seed)], rtol=1e-6, atol=0)
        for name in probes.ALGORITHMS
    )


ALL_REDUCE_SECONDS = Question(
    name="q5",
    title="Predict an all-reduce",
    asks_for=("all_reduce_seconds",),
    probe=probes.probe_all_reduce_seconds,
    targets=tuple(
        Target(f"the {name}'s seconds, exactly as the model gives them", _predicted(name)) for name in probes.ALGORITHMS
    ),
    mistakes=(
        Mistake(
            "bits taken for bytes",
            "You divide bytes by bits per second: eight times too fast.",
            "A network of 100 Gbit/s carries 12.5 GB a second.",
            lambda *link: _seconds(*link, bits=1),
        ),
        Mistake(
            "one way",
            "You count half of the rounds: the sum must also come back to every worker.",
            "Naive and ring need 2(N-1) rounds, the tree twice its levels.",
            lambda *link: _seconds(*link, ways=1),
        ),
        Mistake(
            "half a ring",
            "Your ring stops half-way: each worker has one complete chunk and lacks the others.",
            "q1 is the ring's first half. What does the second cost?",
            lambda algorithm, *link: _seconds(algorithm, *link, ways=1 if algorithm == "ring" else 2),
        ),
        Mistake(
            "level not rounded up",
            "Your tree has too few levels, or a part of one, when N is not a power of two.",
            "Draw the tree of five workers: how many levels has it? And of eight?",
            lambda *link: _seconds(*link, log=math.floor),
            lambda answers, seed: _levels_by(answers, seed, math.floor) or _levels_by(answers, seed, float),
        ),
        Mistake(
            "latency left out",
            "You count the bytes and not the latency, which every round pays.",
            "A round costs the latency plus the message.",
            lambda *link: _seconds(*link, latencies=0),
        ),
        Mistake(
            "latency once",
            "You pay the latency once in all; every round pays it.",
            "Rounds follow one another: each waits for the one before.",
            lambda *link: _seconds(*link, latencies=1),
        ),
        Mistake(
            "ring of whole buffers",
            "Your ring passes whole buffers, and a ring passes chunks.",
            "A message of the ring is 1/N of the buffer.",
            lambda *link: _seconds(*link, chunks=1),
        ),
    ),
)


# q6: the learner's own run


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
    return (
        len(losses) > 1
        and np.isfinite(losses).all()
        and losses[-1] < 0.8 * losses[0]
        or f"your losses are {', '.join(f'{x:.3g}' for x in losses)}"
    )


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


def _small_data(leak=False):
    def load_data():
        from course_lib import data

        x, y = data.arrays("digits", "train")
        test = slice(0, 200) if leak else slice(1024, 1200)
        return x[:1024], y[:1024], x[test], y[test]

    return load_data


def _far_from_settled():
    """Layers that give values about 10 to a batch normalisation, whose moving mean starts at 0."""
    import keras

    return [keras.layers.Rescaling(1.0, offset=10.0), keras.layers.BatchNormalization()]


def _train(in_scope=True, batch=probes.GLOBAL_BATCH, epochs=3, rate=0.5, share=1.0, before=list):
    """A small linear classifier on the digits, with one thing wrong; before() are layers in front of it."""

    def train(strategy, seed):
        import contextlib

        import keras

        keras.utils.set_random_seed(seed)
        with strategy.scope() if in_scope else contextlib.nullcontext():
            layers = [keras.Input((8, 8, 1)), *before(), keras.layers.Flatten(), keras.layers.Dense(10)]
            model = keras.Sequential(layers)
            model.compile(keras.optimizers.SGD(rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        x, y, *_ = _small_data()()
        rows = int(share * len(x))
        fit = model.fit(x[:rows], y[:rows], batch_size=batch, epochs=epochs, verbose=0)
        return model, fit.history["loss"]

    return train


OWN_RUN = Question(
    name="q6",
    title="Your model, your data, four replicas",
    asks_for=("load_data", "train"),
    probe=probes.probe_training,
    targets=(
        Target("the model trains on all replicas, with identical copies of every trained weight", _on_all_replicas),
        Target("one optimizer step per global batch of 128", _full_global_batches),
        Target("the last epoch's loss is below 0.8 of the first's", _loss_falls),
        Target("test accuracy at least 20 points above the commonest class", _learned),
        Target("no more than 1% of the test examples stand in the training data", _nothing_leaked),
    ),
    mistakes=(
        Mistake(
            "outside the scope",
            "Your model trains on one replica; the others are idle.",
            "Make and compile the model under `strategy.scope()`, where strategy is the argument.",
            {"load_data": _small_data(), "train": _train(in_scope=False)},
            lambda answers, seed: answers["replicas"] == 1 < answers["wanted_replicas"],
        ),
        Mistake(
            "local batch of 128",
            "A step takes 128 rows on every replica, so the global batch is N times too large.",
            "The batch size that `fit` or a plain dataset gets is the global one.",
            {"load_data": _small_data(), "train": _train(batch=4 * probes.GLOBAL_BATCH)},
            lambda answers, seed: _steps_for_batch(answers, probes.GLOBAL_BATCH * answers["wanted_replicas"]),
        ),
        Mistake(
            "batch divided by hand",
            "A step takes 128 / N rows over all replicas: you divided the batch, and the strategy divides it again.",
            "Give `fit` batches of 128; the strategy makes the shards.",
            {"load_data": _small_data(), "train": _train(batch=probes.GLOBAL_BATCH // 4)},
            lambda answers, seed: _steps_for_batch(answers, probes.GLOBAL_BATCH // answers["wanted_replicas"]),
        ),
        Mistake(
            "examples held out",
            "An epoch has fewer steps than your training data fill: some of them are held out.",
            "Train on all of x_train; `validation_split` takes its share away.",
            {"load_data": _small_data(), "train": _train(share=0.75)},
            _some_held_out,
        ),
        Mistake(
            "tested on training data",
            "Your test examples are also training examples, so the accuracy says nothing.",
            "Split before you train, and return disjoint arrays from `load_data`.",
            {"load_data": _small_data(leak=True), "train": _train()},
            lambda answers, seed: answers["leaked"] > 0.01,
        ),
        Mistake(
            "normalisation not settled",
            "The loss falls, but the model tests badly: its batch normalisation has not settled, and differs by replica.",
            "A test uses the layer's moving averages. How many steps do they need, and how many do you take?",
            {"load_data": _small_data(), "train": _train(before=_far_from_settled)},
            _not_settled,
        ),
        Mistake(
            "hardly trained",
            "The steps are right, but the model has learned next to nothing.",
            "Look at the losses: more epochs, or a larger learning rate.",
            {"load_data": _small_data(), "train": _train(rate=1e-5)},
            lambda answers, seed: (
                _full_global_batches(answers, seed) is True and _loss_falls(answers, seed) is not True
            ),
        ),
    ),
)

QUESTIONS = (
    forms.formed(
        REDUCE_SCATTER,
        {"chunks": [forms.array], "sent_bytes": [forms.size], "hops": [forms.size], "rounds": forms.size},
    ),
    forms.formed(REPLICA_STEP, {"weights": forms.each_replica(forms.array), "losses": (forms.number, forms.number)}),
    forms.formed(
        PREPARE,
        {
            "replicas": forms.replicas,
            "model_copies": [forms.count],
            "optimizer_copies": [forms.count],
            "optimizer_built": forms.flag,
            "first_shapes": [[forms.size]],
            "examples": [forms.array],
        },
    ),
    forms.formed(LEARNING_RATE, {"rates": (forms.number,) * 5}),
    forms.formed(ALL_REDUCE_SECONDS, {name: [forms.number] for name in probes.ALGORITHMS}),
    forms.formed(
        OWN_RUN,
        {
            "wanted_replicas": forms.replicas,
            "replicas": forms.count,
            "identical": forms.flag,
            "statistics_identical": forms.flag,
            "train_examples": forms.size,
            "steps_per_epoch": forms.number,
            "losses": [forms.any_number],
            "accuracy": forms.share,
            "commonest": forms.share,
            "leaked": forms.share,
        },
    ),
)
