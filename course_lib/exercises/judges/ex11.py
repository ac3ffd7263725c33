"""Exercise 11: a replica's input, a rate in updates, a resume, a run to 97%, scaling and its limit.

Needs NumPy; the wrong answers of q4 need TensorFlow when they run.
"""

import math
from collections import Counter

import numpy as np

from course_lib.exercises.judges import forms
from course_lib.exercises.probes import ex11 as probes
from course_lib.exercises.question import Mistake, Question, Target

FLOAT64 = 1e-5  # relative: float64 all through, and rounding far below
FLOOR, BUDGET = 0.97, 700  # of q4: test accuracy, updates
PLAIN_EFFICIENCY = 1e-6  # relative: a median and two divisions


# q1: a replica's input


def _steps_of(epoch):
    """Per step, the replicas' rows; replicas with fewer steps have empty ones."""
    longest = max(len(steps) for steps in epoch["replicas"])
    empty = np.array([], int)
    return [[steps[at] if at < len(steps) else empty for steps in epoch["replicas"]] for at in range(longest)]


def _rows_of(epoch):
    return [int(row) for step in _steps_of(epoch) for rows in step for row in rows]


def _every_row_once(answers, seed):
    rows = probes.input_case(seed)["rows"]
    for (number, training), epoch in zip(probes.EPOCHS, answers["epochs"], strict=True):
        seen = Counter(_rows_of(epoch))
        if strange := [row for row in seen if not 0 <= row < rows]:
            return f"there is no row {strange[0]}"
        if missing := rows - len(seen):
            return f"{missing} of {rows} rows reach no replica{'' if training else ' in testing'}"
        if double := sum(count > 1 for count in seen.values()):
            return f"{double} of {rows} rows come more than once in an epoch"
    return True


def _even_shares(answers, seed):
    case = probes.input_case(seed)
    whole, last = divmod(case["rows"], case["global_batch"])
    for epoch in answers["epochs"]:
        if len(epoch["replicas"]) != case["replicas"]:
            return f"there are rows of {len(epoch['replicas'])} replicas"
        sizes = [[len(rows) for rows in step] for step in _steps_of(epoch)]
        totals = [sum(step) for step in sizes]
        if totals != [case["global_batch"]] * whole + [last]:
            return f"with global batches of {case['global_batch']} for {case['rows']} rows, your steps have {totals}"
        if odd := [step for step in sizes if max(step) - min(step) > 1]:
            return f"a step's rows are shared out as {odd[0]}"
    return True


def _order_by_epoch(answers, seed):
    first, second, again, _ = map(_rows_of, answers["epochs"])
    if first != again:
        return "epoch 0, asked for again, comes in another order"
    return first != second or "epochs 0 and 1 come in the same order"


def _labels_fit(answers, seed):
    return all(epoch["labels_fit"] for epoch in answers["epochs"]) or "some images come with the label of another one"


def _augmented_in_training_alone(answers, seed):
    for (_, training), epoch in zip(probes.EPOCHS, answers["epochs"], strict=True):
        if epoch["augmented"] != float(training):
            return f"{epoch['augmented']:.0%} of the images are augmented in {'training' if training else 'testing'}"
    return True


def _own_keys(answers, seed):
    first, second, again, test = ([tuple(key) for key in epoch["keys"]] for epoch in answers["epochs"])
    if test or first != again:
        return "testing has keys, or the same epoch has others when it is asked for again"
    if len(first) < (batches := sum(map(len, answers["epochs"][0]["replicas"]))):
        return f"of {batches} local batches in an epoch, {len(first)} are augmented with a key"
    shared = len(first + second) - len(set(first + second))
    return shared == 0 or f"{shared} local batches of two epochs share their key with another one"


def _replica_batches(
    rows=lambda order, batch: np.split(order, range(batch, len(order), batch)),
    share=lambda step, replicas, replica: np.array_split(step, replicas)[replica],
    key=lambda epoch, replica, step: (epoch, replica, step),
    order_seed=lambda epoch, replica: epoch,
    labels_follow=True,
    in_testing=False,
):
    """The solution, with one thing wrong: see the mistakes for which."""

    def replica_batches(images, labels, global_batch, replicas, replica, epoch, training, augment):
        order = np.arange(len(images))
        if training:
            order = np.random.default_rng(order_seed(epoch, replica)).permutation(len(images))
        batches = []
        for number, step in enumerate(rows(order, global_batch)):
            local = share(step, replicas, replica)
            x = images[local]
            x = augment(x, key(epoch, replica, number)) if training or in_testing else x
            batches.append((x, labels[local if labels_follow else np.sort(local)]))
        return batches

    return replica_batches


def _dropped(order, batch):
    return np.split(order[: len(order) // batch * batch], len(order) // batch)


def _by_slices(step, replicas, replica):
    local = len(step) // replicas
    return step[replica * local : (replica + 1) * local]


def _another_order_each_time(answers, seed):
    return _every_row_once(answers, seed) is not True and _rows_of(answers["epochs"][0]) != _rows_of(
        answers["epochs"][2]
    )


def _unseeded(images, labels, global_batch, replicas, replica, epoch, training, augment):
    wrong = _replica_batches(order_seed=lambda epoch, replica: None)
    return wrong(images, labels, global_batch, replicas, replica, epoch, training, augment)


INPUT = Question(
    name="q1",
    title="A replica's input",
    asks_for=("replica_batches",),
    probe=probes.probe_batches,
    targets=(
        Target("in every epoch each row reaches exactly one replica, the last ones too", _every_row_once),
        Target("a step has global_batch rows, the last one the rest; shares differ by one row at most", _even_shares),
        Target("the order is the epoch's: another one in the next, the same when asked again", _order_by_epoch),
        Target("every image comes with its own label", _labels_fit),
        Target("all training images are augmented, and no test image", _augmented_in_training_alone),
        Target("each local batch of two epochs has a key of its own", _own_keys),
    ),
    mistakes=(
        Mistake(
            "last rows dropped",
            "The rows of the last, smaller batch reach nobody.",
            "What do you do with the rows that don't fill a global batch?",
            _replica_batches(rows=_dropped),
        ),
        Mistake(
            "rest of a share dropped",
            "Where the replicas don't divide a batch, the rows that are left over reach nobody.",
            "The last batch. `//` rounds down, so count what the replicas get together.",
            _replica_batches(share=_by_slices),
        ),
        Mistake(
            "not sharded",
            "Every replica gets the whole global batch, so each row is computed by all of them.",
            "Where do replica and replicas enter your batches?",
            _replica_batches(share=lambda step, replicas, replica: step),
        ),
        Mistake(
            "an order for each replica",
            "Each replica shuffles by itself; then takes its share: some rows come twice and others never.",
            "Shares of one batch are disjoint only if all replicas cut the same batch.",
            _replica_batches(order_seed=lambda epoch, replica: [epoch, replica]),
        ),
        Mistake(
            "no seed",
            "Your order is another one at each call, so replicas don't agree, and a restart doesn't go on where it was.",
            "What is the same on every replica and in every process, and another one in each epoch?",
            _unseeded,
            _another_order_each_time,
        ),
        Mistake(
            "one order for all epochs",
            "Every epoch has the same order, so the same rows meet in every batch.",
            "The seed of your order.",
            _replica_batches(order_seed=lambda epoch, replica: 0),
        ),
        Mistake(
            "labels left behind",
            "You bring the images into a new order, and not the labels.",
            "Index both by the same rows.",
            _replica_batches(labels_follow=False),
        ),
        Mistake(
            "augmented in testing",
            "You augment the test images too.",
            "A test asks about the images as they are: what does `training` decide in your function?",
            _replica_batches(in_testing=True),
        ),
        Mistake(
            "one key for all replicas",
            "Replicas draw the same random numbers for their local batches, so augmentation varies less than it seems.",
            "Which three numbers tell a local batch from all others?",
            _replica_batches(key=lambda epoch, replica, step: (epoch, step)),
        ),
        Mistake(
            "one key for all epochs",
            "An epoch draws the random numbers of the one before.",
            "Which three numbers tell a local batch from all others?",
            _replica_batches(key=lambda epoch, replica, step: (replica, step)),
        ),
    ),
)


# q2: a rate in updates


def _rate_at(
    count=lambda micro_step, k: micro_step // k,
    scale=lambda local, replicas, k: local * replicas * k,
    rule=lambda factor: factor,
    start=lambda base_rate: base_rate,
    per_epoch=lambda examples, local, replicas, k: examples // (local * replicas * k),
    warms=True,
    decay_from_warmup=True,
):
    """The solution, with one thing wrong: see the mistakes for which."""

    def rate_at(
        micro_step, base_rate, base_batch, local_batch, replicas, micro_batches, examples, epochs, warmup_epochs
    ):
        steps = per_epoch(examples, local_batch, replicas, micro_batches)
        warmup, total = warmup_epochs * steps * warms, epochs * steps
        update = count(micro_step, micro_batches)
        peak = base_rate * rule(scale(local_batch, replicas, micro_batches) / base_batch)
        if update < warmup:
            return start(base_rate) + (peak - start(base_rate)) * update / warmup
        offset = warmup * decay_from_warmup
        return peak * (1 + math.cos(math.pi * min(1, (update - offset) / (total - offset)))) / 2

    return rate_at


_right_rate = _rate_at()


def _phase(run, step):
    per_epoch = run["examples"] // (run["local_batch"] * run["replicas"] * run["micro_batches"])
    return "warm-up" if step // run["micro_batches"] < per_epoch * run["warmup_epochs"] else "decay"


def _rates_in(phase, chosen=lambda place: True):
    def holds(answers, seed):
        for place, ((step, run), rate) in enumerate(zip(probes.rate_cases(seed), answers["rates"], strict=True)):
            wanted = _right_rate(step, **run)
            if _phase(run, step) == phase and chosen(place) and not math.isclose(rate, wanted, rel_tol=FLOAT64):
                k, replicas = run["micro_batches"], run["replicas"]
                return f"micro-step {step}, with {replicas} replicas and {k} micro-batches: yours is {rate / wanted:.3g} times the right rate"
        return True

    return holds


def _one_rate_per_group(answers, seed):
    pairs = list(zip(probes.rate_cases(seed), answers["rates"], strict=True))
    for ((step, run), rate), ((_, _), next_rate) in zip(pairs, pairs[1:]):
        if step == 0 and rate != next_rate:
            return f"the first and the last of a group of {run['micro_batches']} have different rates"
    return True


def _at_the_peak(answers, seed):
    for (step, run), rate in zip(probes.rate_cases(seed), answers["rates"], strict=True):
        per_epoch = run["examples"] // (run["local_batch"] * run["replicas"] * run["micro_batches"])
        if step == run["micro_batches"] * per_epoch * run["warmup_epochs"]:
            factor = run["local_batch"] * run["replicas"] * run["micro_batches"] / run["base_batch"]
            if not math.isclose(rate / run["base_rate"], factor, rel_tol=FLOAT64):
                return f"an update has {factor:g} times base_batch examples, and your rate is {rate / run['base_rate']:.4g} times base_rate"
    return True


RATE = Question(
    name="q2",
    title="A rate, counted in updates",
    asks_for=("rate_at",),
    probe=probes.probe_rates,
    targets=(
        Target("all micro-steps of a group have one rate", _one_rate_per_group),
        Target("the warm-up rises from base_rate, right to 0.001%", _rates_in("warm-up")),
        Target("after the warm-up the rate is the linear rule's, right to 0.001%", _at_the_peak),
        Target("then it falls as a half cosine to 0 at the end of the run, right to 0.001%", _rates_in("decay")),
    ),
    mistakes=(
        Mistake(
            "micro-steps counted",
            "You count micro-steps, so the warm-up and the decay are over k times too early.",
            "The argument counts calls of the training step. How many of them make an update?",
            _rate_at(count=lambda micro_step, k: micro_step),
        ),
        Mistake(
            "micro-batches forgotten",
            "You scale by the replicas alone, and an update has k times as many examples.",
            "How many examples does the optimizer see in one update?",
            _rate_at(scale=lambda local, replicas, k: local * replicas),
        ),
        Mistake(
            "replicas forgotten",
            "You scale by one replica's examples.",
            "How many examples does the optimizer see in one update?",
            _rate_at(scale=lambda local, replicas, k: local * k),
        ),
        Mistake(
            "square root",
            "You scale with the square root of the batch, a rule for Adam; asked for is SGD's linear one.",
            "The power of the factor between the two batches.",
            _rate_at(rule=math.sqrt),
        ),
        Mistake(
            "no warm-up",
            "You begin at the full rate, which is unstable for fresh weights.",
            "What happens in the first warmup_epochs?",
            _rate_at(warms=False),
        ),
        Mistake(
            "from zero",
            "Your warm-up begins at zero, so the first update changes nothing.",
            "From which rate to which does it rise?",
            _rate_at(start=lambda base_rate: 0.0),
        ),
        Mistake(
            "cosine from the start",
            "Your cosine counts from the first update, so the rate drops where the warm-up ends.",
            "Where does the cosine begin, and how many updates has it left?",
            _rate_at(decay_from_warmup=False),
        ),
        Mistake(
            "an epoch of one replica",
            "Your epoch has as many updates as one replica without accumulation would need.",
            "An update uses up a global batch. How many does an epoch have?",
            _rate_at(per_epoch=lambda examples, local, replicas, k: examples // local),
        ),
        Mistake(
            "an update too many",
            "You count an update for the rest of an epoch, and that rest is dropped.",
            "Round the number of updates in an epoch.",
            _rate_at(per_epoch=lambda examples, local, replicas, k: -(-examples // (local * replicas * k))),
        ),
    ),
)


# q3: a resume


def _undisturbed(seed, before):
    trainer = probes.Trainer(seed)
    losses = [trainer.step() for _ in range(before + probes.AFTER)]
    return losses[before:], trainer


def _off_at(got, wanted):
    """The first place where two lists of losses differ, or None."""
    return next(
        (
            at
            for at, (one, other) in enumerate(zip(got, wanted, strict=True), 1)
            if not math.isclose(one, other, rel_tol=FLOAT64)
        ),
        None,
    )


def _same_losses(which, said):
    def holds(answers, seed):
        for before, answer in zip(probes.kills(seed), answers["kills"], strict=True):
            wanted, _ = _undisturbed(seed, before)
            if at := _off_at(answer[which], wanted):
                return f"{said} after micro-batch {before}, its loss number {at} is another one"
        return True

    return holds


def _same_end(answers, seed):
    for before, answer in zip(probes.kills(seed), answers["kills"], strict=True):
        _, trainer = _undisturbed(seed, before)
        if answer["updates"] != trainer.updates:
            return f"it ends with {answer['updates']} updates, and the undisturbed run with {trainer.updates}"
        if answer["weights"].shape != trainer.weights.shape or not np.allclose(
            answer["weights"], trainer.weights, rtol=FLOAT64
        ):
            return "the weights are others"
    return True


NUMBERS = ("added", "updates", "position")
ARRAYS = ("weights", "velocity", "sums")


def _pair(without=(), copies=True):
    """save and restore, the solution but for what they leave out."""

    def save(trainer):
        arrays = {name: np.array(getattr(trainer, name)) if copies else getattr(trainer, name) for name in ARRAYS}
        saved = {
            **arrays,
            **{name: getattr(trainer, name) for name in NUMBERS},
            "generator": trainer.generator.bit_generator.state,
        }
        return {name: value for name, value in saved.items() if name not in without}

    def restore(trainer, saved):
        for name, value in saved.items():
            if name == "generator":
                trainer.generator.bit_generator.state = value
            else:
                setattr(trainer, name, np.array(value) if name in ARRAYS else value)
        return trainer

    return {"save": save, "restore": restore}


RESUME = Question(
    name="q3",
    title="A resume that loses nothing",
    asks_for=("save", "restore"),
    probe=probes.probe_resume,
    targets=(
        Target(
            f"the next {probes.AFTER} losses are the undisturbed run's, to 0.001%", _same_losses("resumed", "resumed")
        ),
        Target("so are the weights, and the number of updates, at the end", _same_end),
        Target("the run that was saved goes on as if it had not been", _same_losses("continued", "saved")),
    ),
    mistakes=(
        Mistake(
            "weights alone",
            "You bring back the weights, and everything else begins anew.",
            "Print the trainer's attributes: which of them does the next step read?",
            _pair(without=("velocity", "sums", *NUMBERS, "generator")),
        ),
        Mistake(
            "optimizer's state lost",
            "The momentum begins at zero again.",
            "What does SGD with momentum remember beside the weights?",
            _pair(without=("velocity",)),
        ),
        Mistake(
            "half a group lost",
            "The micro-batches that were added before the kill are gone, and the group begins anew.",
            "The kill may come in the middle of a group: where are its gradients kept?",
            _pair(without=("sums", "added")),
        ),
        Mistake(
            "sums lost, count kept",
            "You bring back how many micro-batches were added, and not their sum.",
            "A group's update divides a sum. Is all of it there?",
            _pair(without=("sums",)),
        ),
        Mistake(
            "updates not counted",
            "The learning rate begins at its first value again.",
            "What does the rate depend on?",
            _pair(without=("updates",)),
        ),
        Mistake(
            "data from the start",
            "The resumed run begins with the first epoch's first micro-batch.",
            "What decides which rows come next?",
            _pair(without=("position",)),
        ),
        Mistake(
            "new random numbers",
            "The resumed run draws other noise than the undisturbed one would have.",
            "The generator has a state of its own: `generator.bit_generator.state`.",
            _pair(without=("generator",)),
        ),
        Mistake(
            "not copied",
            "What you saved changes while the run goes on: it holds the trainer's own arrays.",
            "The trainer changes its arrays in place. What does a dict that names them hold a moment later?",
            _pair(copies=False),
        ),
    ),
)


# q4: a run to 97%


def _on_all_replicas(answers, seed):
    if answers["replicas"] != answers["wanted_replicas"]:
        return f"a weight has {answers['replicas']} of {answers['wanted_replicas']} copies"
    return answers["identical"] or "the copies differ"


def _within_budget(answers, seed):
    return answers["updates"] <= BUDGET or f"you take {answers['updates']:,}"


def _reaches_floor(answers, seed):
    return answers["test_accuracy"] >= FLOOR or f"yours is {answers['test_accuracy']:.1%}"


def _by_heart(answers, seed):
    return answers["train_accuracy"] >= 0.99 and 0.85 <= answers["test_accuracy"] < FLOOR


def _train(in_scope=True, batch=128, epochs=1, rate=0.1, hidden=(), more_updates=0):
    """A small classifier on the digits, with one thing wrong; more_updates are counted and, to be quick, not made."""

    def train(strategy, images, labels):
        import contextlib

        import keras

        keras.utils.set_random_seed(0)
        with strategy.scope() if in_scope else contextlib.nullcontext():
            layers = [
                keras.Input(images.shape[1:]),
                keras.layers.Flatten(),
                *(keras.layers.Dense(n, "relu") for n in hidden),
            ]
            model = keras.Sequential([*layers, keras.layers.Dense(10)])
            optimizer = keras.optimizers.SGD(rate, momentum=0.9)
            model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(images, labels, batch_size=batch, epochs=epochs, verbose=0)
        optimizer.iterations.assign_add(more_updates)
        return model

    return train


RUN = Question(
    name="q4",
    title="97%, on four replicas, within a budget",
    asks_for=("train",),
    probe=probes.probe_training,
    takes_long=True,
    points=2,
    targets=(
        Target("the model trains on all replicas, with identical copies of every trained weight", _on_all_replicas),
        Target(f"at most {BUDGET} updates", _within_budget),
        Target(f"at least {FLOOR:.0%} of the test images are right", _reaches_floor),
    ),
    mistakes=(
        Mistake(
            "outside the scope",
            "Your model trains on one replica; the others are idle.",
            "Make model and optimizer, and compile, under `strategy.scope()`.",
            _train(in_scope=False),
            lambda answers, seed: answers["replicas"] == 1 < answers["wanted_replicas"],
        ),
        Mistake(
            "over the budget",
            "You take more updates than you have.",
            "A global batch twice as large halves the updates of an epoch, and stands a higher rate after a warm-up.",
            _train(more_updates=BUDGET),
            lambda answers, seed: answers["updates"] > BUDGET,
        ),
        Mistake(
            "diverged",
            "The run has diverged: the logits are not finite, or no better than guessing.",
            "The first updates: a high rate needs a warm-up, and a long gradient can be clipped.",
            _train(rate=1e4, hidden=(16,)),
            lambda answers, seed: not answers["finite"] or answers["train_accuracy"] < 0.3,
        ),
        Mistake(
            "learned by heart",
            "Nearly all training images are right, and too few test images: the model knows the training writers.",
            "More updates of the same images won't help. What makes new images out of old ones?",
            _train(batch=480, epochs=25, rate=0.3, hidden=(128,)),
            _by_heart,
        ),
        Mistake(
            "hardly trained",
            "The model has learned something, and stopped long before the budget is used up.",
            "Epochs times updates per epoch: how much of the budget do you use?",
            _train(epochs=2, rate=0.03),
            lambda answers, seed: answers["updates"] < BUDGET / 4 and answers["test_accuracy"] < FLOOR,
        ),
    ),
)


# q5: scaling and its limit


def _local_batch(times):
    return min(batch for _, batch in times)


def _efficiencies(
    middle=np.median,
    skip=True,
    strong=lambda one, many, replicas: one / (replicas * many),
    weak=lambda one, many, replicas: one / many,
    one_batch=False,
):
    """The solution, with one thing wrong: see the mistakes for which."""

    def efficiencies(times, warmup):
        seconds = {case: float(middle(steps[warmup * skip :])) for case, steps in times.items()}
        local, most = _local_batch(times), max(replicas for replicas, _ in times)
        large = local if one_batch else most * local
        found = {"strong": {}, "weak": {}}
        for replicas, batch in times:
            if batch == most * local:
                found["strong"][replicas] = strong(seconds[1, large], seconds[replicas, batch], replicas)
            if batch == replicas * local:
                found["weak"][replicas] = weak(seconds[1, local], seconds[replicas, batch], replicas)
        return found

    return efficiencies


def _step(parts):
    return max(parts["input"], parts["compute"] + parts["communication"])


def _gain(parts, part):
    return _step(parts) / _step({**parts, part: parts[part] / 2})


def _best_gain(parts):
    best = max(parts, key=lambda part: _gain(parts, part))
    return best, _gain(parts, best)


def _longest(parts):
    longest = max(parts, key=parts.get)
    return longest, _gain(parts, longest)


def _one_after_another(parts):
    total, longest = sum(parts.values()), max(parts, key=parts.get)
    return longest, total / (total - parts[longest] / 2)


def _all_hidden(parts):
    longest = max(parts, key=parts.get)
    halved = {**parts, longest: parts[longest] / 2}
    return longest, max(parts.values()) / max(halved.values())


def _gone(parts):
    best, _ = _best_gain(parts)
    return best, _step(parts) / _step({**parts, best: 0.0})


def _scaling(bottleneck=_best_gain, **wrong):
    return {"efficiencies": _efficiencies(**wrong), "bottleneck": bottleneck}


def _efficiency_is(kind):
    def holds(answers, seed):
        wanted = _efficiencies()(probes.measured(seed), probes.WARMUP)[kind]
        if [replicas for replicas, _ in answers[kind]] != sorted(wanted):
            return f"yours are for {', '.join(str(replicas) for replicas, _ in answers[kind])} replicas"
        for replicas, found in answers[kind]:
            if not math.isclose(found, wanted[replicas], rel_tol=PLAIN_EFFICIENCY):
                return f"for {replicas} replicas yours is {found / wanted[replicas]:.4g} times the right one"
        return True

    return holds


def _names_the_limit(answers, seed):
    for parts, found in zip(probes.loops(seed), answers["parts"], strict=True):
        if found != _best_gain(parts)[0]:
            shares = ", ".join(f"{part} {seconds / _step(parts):.2f}" for part, seconds in parts.items())
            return f"with {shares} of a step, you name {found}"
    return True


def _says_the_gain(answers, seed):
    for parts, found in zip(probes.loops(seed), answers["gains"], strict=True):
        if not math.isclose(found, _best_gain(parts)[1], rel_tol=PLAIN_EFFICIENCY):
            return f"yours is {found:.3f} where it is another one"
    return True


SCALING = Question(
    name="q5",
    title="Efficiency, and what limits it",
    asks_for=("efficiencies", "bottleneck"),
    probe=probes.probe_scaling,
    targets=(
        Target(
            "strong efficiency, for every number of replicas, from medians without the warm-up",
            _efficiency_is("strong"),
        ),
        Target(
            "weak efficiency, for every number of replicas, from medians without the warm-up", _efficiency_is("weak")
        ),
        Target("the part that is worth making twice as fast", _names_the_limit),
        Target("how many times as fast the loop is then", _says_the_gain),
    ),
    mistakes=(
        Mistake(
            "warm-up counted",
            "Your times include the first steps, which trace and compile.",
            "The second argument says how many steps to leave out.",
            _scaling(skip=False),
        ),
        Mistake(
            "mean",
            "You take the mean, and one step that waited for something else spoils it.",
            "Which average doesn't care how far away an outlier is?",
            _scaling(middle=np.mean),
        ),
        Mistake(
            "best time",
            "You take the fastest step, and luck is not what a run has on average.",
            "One of the steps is far too fast. What does it say about the others?",
            _scaling(middle=np.min),
        ),
        Mistake(
            "speed-up for strong",
            "You give how many times faster the replicas are, and not what share of ideal that is.",
            "Ideal is 1 for any number of replicas.",
            _scaling(strong=lambda one, many, replicas: one / many),
        ),
        Mistake(
            "weak divided again",
            "You divide weak scaling by the replicas, but there each of them has as much to do as the one alone.",
            "In weak scaling the ideal step takes as long as one replica's.",
            _scaling(weak=lambda one, many, replicas: one / (replicas * many)),
        ),
        Mistake(
            "upside down",
            "Your efficiencies are above 1 where the replicas wait for each other.",
            "Which time stands above, and which below?",
            _scaling(
                strong=lambda one, many, replicas: replicas * many / one, weak=lambda one, many, replicas: many / one
            ),
        ),
        Mistake(
            "strong against the small batch",
            "You compare the large batch on many replicas with the small one on one replica.",
            "In strong scaling both runs do the same work: the same global batch.",
            _scaling(one_batch=True),
        ),
        Mistake(
            "longest part",
            "You name the longest part, and it may be hidden behind the two others together.",
            "Compute the loop's time again with each part halved.",
            _scaling(bottleneck=_longest),
        ),
        Mistake(
            "one after another",
            "You add all three parts up, but the input of the next step is prepared during this one.",
            "How long is a step when input runs beside the other two?",
            _scaling(bottleneck=_one_after_another),
        ),
        Mistake(
            "all hidden",
            "You hide communication behind compute; here it begins when compute has ended.",
            "Which parts run at the same time, and which one after the other?",
            _scaling(bottleneck=_all_hidden),
        ),
        Mistake(
            "made to vanish",
            "Your gain is that of a part that takes no time at all.",
            "Twice as fast: the part still takes half its time.",
            _scaling(bottleneck=_gone),
        ),
    ),
)

_EFFICIENCIES = [(forms.whole, forms.number)]
QUESTIONS = (
    forms.formed(
        INPUT,
        {
            "epochs": [
                {
                    "replicas": [[forms.array]],
                    "labels_fit": forms.flag,
                    "augmented": forms.number,
                    "keys": [[forms.whole]],
                }
            ]
        },
    ),
    forms.formed(RATE, {"rates": [forms.number]}),
    forms.formed(
        RESUME,
        {
            "kills": [
                {"continued": [forms.number], "resumed": [forms.number], "weights": forms.array, "updates": forms.whole}
            ]
        },
    ),
    forms.formed(
        RUN,
        {
            "wanted_replicas": forms.replicas,
            "replicas": forms.whole,
            "identical": forms.flag,
            "updates": forms.count,
            "finite": forms.flag,
            "train_accuracy": forms.share,
            "test_accuracy": forms.share,
            "first_answers": forms.array,
        },
    ),
    forms.formed(
        SCALING, {"strong": _EFFICIENCIES, "weak": _EFFICIENCIES, "parts": [forms.text], "gains": [forms.number]}
    ),
)
