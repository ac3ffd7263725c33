"""Exercise 08: a group's gradient, three loops, a step in little memory, a plan, two replicas.

Needs NumPy; the wrong answers of q2 and q5 need TensorFlow when they run, and those of q3 in another process.
"""

import math

import numpy as np

from course_lib.exercises.judges import forms
from course_lib.exercises.probes import ex08 as probes
from course_lib.exercises.question import Mistake, Question, Target

FLOAT32 = 1e-5  # relative: a dozen products and sums in float32
CONVOLUTION = 1e-4  # relative: sums over all pixels of a thousand images, in another order
MEMORY_SLACK = 1.15  # of q3's limit


def _off(got, wanted) -> float:
    """How far an array is from what is wanted, as a share of it; infinite where the shapes differ."""
    got, wanted = np.asarray(got, "float64"), np.asarray(wanted, "float64")
    return np.linalg.norm(got - wanted) / np.linalg.norm(wanted) if got.shape == wanted.shape else math.inf


def _groups(micro_batches, k):
    return [micro_batches[at : at + k] for at in range(0, len(micro_batches), k)]


# q1: a group's gradient


def _setting(micro_batches, k):
    return f"{len(micro_batches)} micro-batches of {' '.join(str(rows) for _, rows in micro_batches)} rows, k = {k}"


def _one_per_group(answers, seed):
    for (micro_batches, k), answer in zip(probes.streams(seed), answers["streams"], strict=True):
        wanted = len(_groups(micro_batches, k))
        if len(answer["gradients"]) != wanted:
            return f"{_setting(micro_batches, k)}: you return {len(answer['gradients'])} gradients for {wanted} groups"
    return True


def _as_one_batch(answers, seed):
    for (micro_batches, k), answer in zip(probes.streams(seed), answers["streams"], strict=True):
        for number, (group, got) in enumerate(zip(_groups(micro_batches, k), answer["gradients"]), 1):
            gradients, rows = zip(*group)
            off = _off(got, np.average(gradients, axis=0, weights=rows))
            if not off <= FLOAT32:
                return f"{_setting(micro_batches, k)}: group {number} is off by {100 * off:,.4g}%"
    return _one_per_group(answers, seed) is True


def _left_as_given(answers, seed):
    return all(answer["unchanged"] for answer in answers["streams"]) or "they hold other numbers after your call"


def _group_gradients(
    weight=lambda rows: rows, divisor=lambda rows, count, k: rows, rest=True, keeps_sum=False, keeps_rows=False
):
    """The solution, with one thing wrong: see the mistakes for which."""

    def group_gradients(micro_batches, k):
        gradients, total, rows, count = [], 0.0, 0, 0
        for gradient, local in micro_batches:
            total, rows, count = total + weight(local) * gradient, rows + local, count + 1
            if count == k:
                gradients.append(total / divisor(rows, count, k))
                total, rows, count = total * keeps_sum, rows * keeps_rows, 0
        if count and rest:
            gradients.append(total / divisor(rows, count, k))
        return gradients

    return group_gradients


def _alike(rows):
    return 1


def _empty_group_too(micro_batches, k):
    micro_batches = list(micro_batches)
    gradients = _group_gradients()(micro_batches, k)
    return gradients if len(micro_batches) % k else [*gradients, np.zeros_like(gradients[0])]


def _a_group_too_many(answers, seed):
    extra = [
        len(answer["gradients"]) - len(_groups(micro_batches, k))
        for (micro_batches, k), answer in zip(probes.streams(seed), answers["streams"], strict=True)
    ]
    wanted = [int(len(micro_batches) % k == 0) for micro_batches, k in probes.streams(seed)]
    if extra != wanted:
        return False
    shorter = [
        answer["gradients"][: len(answer["gradients"]) - more]
        for answer, more in zip(answers["streams"], extra, strict=True)
    ]
    return _as_one_batch({"streams": [{"gradients": gradients} for gradients in shorter]}, seed) is True


def _as_first_micro_batch(micro_batches, k):
    micro_batches = list(micro_batches)
    full = k * micro_batches[0][1]
    return _group_gradients(divisor=lambda rows, count, k: full)(micro_batches, k)


def _one_buffer(micro_batches, k):
    gradients = _group_gradients()(micro_batches, k)
    return [gradients[-1]] * len(gradients)


def _in_place(micro_batches, k):
    def weighed():
        for gradient, rows in micro_batches:
            gradient *= rows
            yield gradient, rows

    return _group_gradients(weight=_alike)(weighed(), k)


GROUPS = Question(
    name="q1",
    title="The group's gradient",
    asks_for=("group_gradients",),
    probe=probes.probe_group_gradients,
    targets=(
        Target("one gradient per group, also for a last one that is not full", _one_per_group),
        Target("each is the gradient of the mean over all rows of its group, to 0.001%", _as_one_batch),
        Target("the arrays that you were given are as they were", _left_as_given),
    ),
    mistakes=(
        Mistake(
            "mean of means",
            "You take the mean over the micro-batches, so a row of a small one counts more than a row of a large one.",
            "Each gradient is already a mean over its own rows. How many rows stand behind it?",
            _group_gradients(weight=_alike, divisor=lambda rows, count, k: count),
        ),
        Mistake(
            "divided by k",
            "You divide by k, whatever the rows; in a group that is not full that is too much as well.",
            "Which number belongs under a sum of gradients that each stand for another number of rows?",
            _group_gradients(weight=_alike, divisor=lambda rows, count, k: k),
        ),
        Mistake(
            "sum of means",
            "You add the gradients up, so the step grows with k.",
            "The gradient of a mean is a mean.",
            _group_gradients(weight=_alike, divisor=lambda rows, count, k: 1),
        ),
        Mistake(
            "sum over rows",
            "You weigh by rows and divide by nothing, so the step grows with the batch.",
            "By what do you divide to get back a mean over rows?",
            _group_gradients(divisor=lambda rows, count, k: 1),
        ),
        Mistake(
            "all as the first",
            "You divide by k times the rows of the first micro-batch, and others have more rows or fewer.",
            "Count the rows as they come.",
            _as_first_micro_batch,
        ),
        Mistake(
            "rest dropped",
            "The micro-batches after the last full group are in no gradient.",
            "What is left in your sums when the loop ends?",
            _group_gradients(rest=False),
        ),
        Mistake(
            "empty group",
            "Where k divides the micro-batches, you end with a group in which there is nothing.",
            "When is something left after the loop? What if the last group has just been full?",
            _empty_group_too,
            _a_group_too_many,
        ),
        Mistake(
            "sum not reset",
            "The second group's gradient still holds the first one's.",
            "Which of your running numbers begin again with a group?",
            _group_gradients(keeps_sum=True),
        ),
        Mistake(
            "rows not reset",
            "You divide by all rows so far, those of earlier groups included.",
            "Which of your running numbers begin again with a group?",
            _group_gradients(keeps_rows=True),
        ),
        Mistake(
            "nothing reset",
            "Your groups are running means since the beginning.",
            "Which of your running numbers begin again with a group?",
            _group_gradients(keeps_sum=True, keeps_rows=True),
        ),
        Mistake(
            "one buffer",
            "You return the same array for every group, so all hold what the last one had.",
            "`a[:] = 0` and `a += b` write into the array that you have put into your list.",
            _one_buffer,
        ),
        Mistake(
            "in place",
            "You have changed arrays that are not yours: their next reader finds other numbers.",
            "`*=` and `+=` write into the array on their left: whose is it?",
            _in_place,
        ),
    ),
)


# q2: three loops


def _last_or_full(number, count, k, last):
    return count == k or number == last


def _each_kth_from_the_first(number, count, k, last):
    return number % k == 1 or number == last


def _accumulate(
    gradient_of, apply, micro_batches, k, mean=None, part=lambda k: 1, due=_last_or_full, masked=False, resets=True
):
    """Any of q2's loops; returns its updates.

    gradient_of, apply  of x and y -> an array or tensor; of what the optimizer gets
    mean                (count, k) -> what the sum is divided by; the count, unless given
    part                (k) -> what each micro-batch's loss is divided by
    due                 (number from 1, count in the group, k, last number) -> whether to update now
    masked              the optimizer gets zeros instead of nothing
    """
    total, count, updates = 0.0, 0, 0
    for number, (x, y) in enumerate(micro_batches, 1):
        total, count = total + gradient_of(x, y) / part(k), count + 1
        now = due(number, count, k, len(micro_batches))
        if now or masked:
            apply(float(now) * total / (mean(count, k) if mean else count))
        if now:
            total, count, updates = total * float(not resets), 0, updates + 1
    return updates


def _loop(**wrong):
    """One of the learner's functions, with Keras."""

    def loop(model, optimizer, micro_batches, k):
        import tensorflow as tf

        def gradient_of(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y))
            return tape.gradient(loss, model.trainable_variables)[0]

        return _accumulate(
            gradient_of, lambda g: optimizer.apply([g], model.trainable_variables), micro_batches, k, **wrong
        )

    return loop


class _Linear:
    """The same in NumPy: a linear model with one of q2's optimizers. Keras' own formulas, and Adam's defaults."""

    def __init__(self, weights, optimizer):
        self.weights, self.optimizer = weights.astype("float64"), optimizer
        self.first, self.second, self.steps = 0.0, 0.0, 0

    def gradient_of(self, x, y):
        return 2 * x.T @ (x @ self.weights - y) / len(y)

    def apply(self, gradient):
        if self.optimizer == "Adam":
            self.steps += 1
            self.first = 0.9 * self.first + 0.1 * gradient
            self.second = 0.999 * self.second + 0.001 * gradient**2
            rate = probes.RATE * math.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
            self.weights = self.weights - rate * self.first / (np.sqrt(self.second) + 1e-7)
        else:
            momentum = probes.MOMENTUM if self.optimizer == "momentum" else 0
            self.first = momentum * self.first - probes.RATE * gradient
            self.weights = self.weights + self.first


def _computed(seed, optimizer, **wrong):
    """Weights and updates of one of q2's loops, in NumPy."""
    first, micro_batches, k = probes.linear_epoch(seed)
    model = _Linear(first, optimizer)
    return model, _accumulate(model.gradient_of, model.apply, micro_batches, k, **wrong)


def _is_big_batch(loop):
    """A target: this loop's weights are those of the big batch, with every optimizer."""

    def holds(answers, seed):
        off = {name: _off(ran["weights"], _computed(seed, name)[0].weights) for name, ran in answers[loop].items()}
        said = ", ".join(f"{100 * share:,.4g}% with {name}" for name, share in off.items() if not share <= FLOAT32)
        return not said or f"off by {said}"

    return holds


def _updates_of_all(answers, seed):
    _, micro_batches, k = probes.linear_epoch(seed)
    wanted = len(_groups(micro_batches, k))
    for loop in probes.LOOPS:
        wrong = {ran["updates"] for ran in answers[loop].values()} - {wanted}
        if wrong:
            return f"{loop} returns {min(wrong)} for {len(micro_batches)} micro-batches in groups of {k}"
    return True


def _runs_as(loops, **wrong):
    """Recognise that one of these loops has run with this wrong, with every optimizer."""

    def recognise(answers, seed):
        return any(
            all(
                _off(ran["weights"], _computed(seed, name, **wrong)[0].weights) <= 10 * FLOAT32
                for name, ran in answers[loop].items()
            )
            for loop in loops
        )

    return recognise


def _wrong_loops(*loops, **wrong):
    """The names of a learner with this wrong in these loops, and how to recognise one of them."""
    return {loop: _loop(**wrong) if loop in loops else _loop() for loop in probes.LOOPS}, _runs_as(loops, **wrong)


LOOPS = Question(
    name="q2",
    title="Repair three loops",
    asks_for=probes.LOOPS,
    probe=probes.probe_loops,
    targets=(
        *(
            Target(f"{loop} equals the big batch to 0.001%, with every optimizer", _is_big_batch(loop))
            for loop in probes.LOOPS
        ),
        Target("each returns its updates: one per group, the last one included", _updates_of_all),
    ),
    mistakes=(
        Mistake(
            "a as it was",
            "In loop_a the gradients are divided twice. Adam divides by their size, so it hides that; SGD does not.",
            "Follow one gradient from the tape to `apply`, and count the divisions.",
            *_wrong_loops("loop_a", part=lambda k: k),
        ),
        Mistake(
            "b as it was",
            "In loop_b the optimizer gets zeros between the updates. Plain SGD stands still then; momentum and Adam do not.",
            "How often does the optimizer count a step? How often should it?",
            *_wrong_loops("loop_b", masked=True),
        ),
        Mistake(
            "c as it was",
            "In loop_c the first group has one micro-batch, and all others are shifted.",
            "For which `number` is the remainder 0 the first time?",
            *_wrong_loops("loop_c", due=_each_kth_from_the_first),
        ),
        Mistake(
            "no mean",
            "One of your loops divides the sum by nothing: SGD's step is k times too long, and Adam hardly shows it.",
            "A group's gradient is a mean over its micro-batches, which have as many rows each.",
            *_wrong_loops("loop_a", "loop_b", "loop_c", mean=lambda count, k: 1),
        ),
        Mistake(
            "divided by k",
            "One of your loops divides by k also where the last group has fewer micro-batches.",
            "How many micro-batches are in the sum when the epoch ends?",
            *_wrong_loops("loop_a", "loop_b", "loop_c", mean=lambda count, k: k),
        ),
        Mistake(
            "last group forgotten",
            "One of your loops ends without an update from the last group, which is not full.",
            "When is an update due? There are two cases.",
            *_wrong_loops("loop_a", "loop_b", "loop_c", due=lambda number, count, k, last: count == k),
        ),
        Mistake(
            "never reset",
            "In one of your loops every group still holds the gradients of those before it.",
            "What must be zero again after an update?",
            *_wrong_loops("loop_a", "loop_b", "loop_c", resets=False),
        ),
        Mistake(
            "every micro-batch",
            "One of your loops updates after each micro-batch, so the next gradient is taken at other weights.",
            "All gradients of a group belong to the same weights.",
            *_wrong_loops("loop_a", "loop_b", "loop_c", due=lambda number, count, k, last: True),
        ),
    ),
)


# q3: a step in the memory of one micro-batch


def _limit(answers):
    return MEMORY_SLACK * (answers["bytes"]["one"] + answers["bytes"]["gradients"])


def _little_memory(answers, seed):
    held = answers["bytes"]
    said = f"yours needs {held['yours'] / 2**20:.1f} MiB; a plain step on one micro-batch needs {held['one'] / 2**20:.1f} MiB"
    return (
        held["yours"] <= _limit(answers) or f"{said}, and a copy of the gradients {held['gradients'] / 2**20:.1f} MiB"
    )


def _changed_as_the_big_batch(answers, seed):
    off = answers["off"]["right"]
    return off <= CONVOLUTION or f"off by {100 * off:,.3g}%"


def _one_update(answers, seed):
    return answers["updates"] == 1 or f"it counts {answers['updates']}"


def _mean_loss_of_all(answers, seed):
    sizes = probes.step_sizes(seed)
    off = abs(answers["loss"] / np.average(answers["losses"], weights=_part_rows(**sizes)) - 1)
    return bool(off <= CONVOLUTION) or f"off by {100 * off:,.3g}%"


def _part_rows(micro_batch, rows, seed):
    return [min(micro_batch, rows - at) for at in range(0, rows, micro_batch)]


def _forwards(answers):
    return [(rows, in_graph) for name, rows, in_graph in answers["passes"] if name == "forward"]


def _whole_batch_at_once(answers, seed):
    return max(rows for rows, _ in _forwards(answers)) > probes.step_sizes(seed)["micro_batch"]


def _forwards_first(answers, seed):
    names = [name for name, _, in_graph in answers["passes"] if not in_graph]
    return names[:2] == ["forward", "forward"]


def _graph_too_large(answers, seed):
    return any(in_graph for _, in_graph in _forwards(answers)) and _little_memory(answers, seed) is not True


def _too_large(copies_at_most=math.inf):
    """Recognise a right update that needs too much memory: at most so many copies of the gradients beside a plain step."""

    def recognise(answers, seed):
        held = answers["bytes"]
        copies = (held["yours"] - held["one"]) / held["gradients"]
        return (
            _changed_as("right")(answers, seed)
            and _little_memory(answers, seed) is not True
            and copies <= copies_at_most
        )

    return recognise


def _changed_as(candidate):
    return lambda answers, seed: answers["updates"] == 1 and answers["off"][candidate] <= CONVOLUTION


def _last_loss(answers, seed):
    return math.isclose(answers["loss"], answers["losses"][-1], rel_tol=CONVOLUTION)


def _by_micro_batch(model, loss, x, y, micro_batch, weight):
    """(loss, gradients) of each micro-batch, times weight(its rows, all rows), computed when asked for."""
    import tensorflow as tf

    rows = x.shape[0]
    for at in range(0, rows, micro_batch):
        local_x, local_y = x[at : at + micro_batch], y[at : at + micro_batch]
        with tf.GradientTape() as tape:
            part = loss(local_y, model(local_x, training=True)) * weight(local_x.shape[0], rows)
        yield part, tape.gradient(part, model.trainable_variables)


def _one_step(model, optimizer, loss, x, y, micro_batch, weight=lambda local, rows: local / rows, told=None):
    """The solution, with other weights, or another loss told."""
    total, sums = 0.0, None
    for part, gradients in _by_micro_batch(model, loss, x, y, micro_batch, weight):
        sums = gradients if sums is None else [one + other for one, other in zip(sums, gradients)]
        total = total + part
    optimizer.apply(sums, model.trainable_variables)
    return total if told is None else told(part, x.shape[0] % micro_batch, x.shape[0])


def whole_batch(model, optimizer, loss, x, y, micro_batch):
    return _one_step(model, optimizer, loss, x, y, len(x))


def one_tape(model, optimizer, loss, x, y, micro_batch):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        total = 0.0
        for at in range(0, len(x), micro_batch):
            local_x, local_y = x[at : at + micro_batch], y[at : at + micro_batch]
            total += loss(local_y, model(local_x, training=True)) * (len(local_x) / len(x))
    optimizer.apply(tape.gradient(total, model.trainable_variables), model.trainable_variables)
    return total


def one_graph(model, optimizer, loss, x, y, micro_batch):
    import tensorflow as tf

    return tf.function(_one_step)(model, optimizer, loss, x, y, micro_batch)


def gradients_kept(model, optimizer, loss, x, y, micro_batch):
    import tensorflow as tf

    parts = list(_by_micro_batch(model, loss, x, y, micro_batch, lambda local, rows: local / rows))
    optimizer.apply([tf.add_n(kept) for kept in zip(*(gradients for _, gradients in parts))], model.trainable_variables)
    return sum(part for part, _ in parts)


def persistent_tape(model, optimizer, loss, x, y, micro_batch):
    import tensorflow as tf

    sums = [tf.zeros(variable.shape) for variable in model.trainable_variables]
    total = 0.0
    with tf.GradientTape(persistent=True) as tape:
        for at in range(0, x.shape[0], micro_batch):
            local_x, local_y = x[at : at + micro_batch], y[at : at + micro_batch]
            part = loss(local_y, model(local_x, training=True)) * (local_x.shape[0] / x.shape[0])
            with tape.stop_recording():
                gradients = tape.gradient(part, model.trainable_variables)
            sums = [one + other for one, other in zip(sums, gradients)]
            total += part
    optimizer.apply(sums, model.trainable_variables)
    return total


def updates_of_all(model, optimizer, loss, x, y, micro_batch):
    total = 0.0
    for part, gradients in _by_micro_batch(model, loss, x, y, micro_batch, lambda local, rows: local / rows):
        optimizer.apply(gradients, model.trainable_variables)
        total += part
    return total


def mean_of_means(model, optimizer, loss, x, y, micro_batch):
    parts = -(-len(x) // micro_batch)
    return _one_step(model, optimizer, loss, x, y, micro_batch, lambda local, rows: 1 / parts)


def last_dropped(model, optimizer, loss, x, y, micro_batch):
    whole = len(x) // micro_batch * micro_batch
    return _one_step(model, optimizer, loss, x[:whole], y[:whole], micro_batch)


def last_loss_told(model, optimizer, loss, x, y, micro_batch):
    return _one_step(model, optimizer, loss, x, y, micro_batch, told=lambda part, local, rows: part * rows / local)


BIG_STEP = Question(
    name="q3",
    title="A big batch under a memory limit",
    asks_for=("big_step",),
    probe=probes.probe_big_step,
    takes_long=True,
    targets=(
        Target("at its peak, at most 1.15 times one micro-batch and a copy of the gradients", _little_memory),
        Target("the weights change as by one step on the whole batch, to 0.01%", _changed_as_the_big_batch),
        Target("the optimizer counts one update", _one_update),
        Target("the loss returned is the mean over all rows, to 0.01%", _mean_loss_of_all),
    ),
    mistakes=(
        Mistake(
            "whole batch",
            "You send more than `micro_batch` rows through the model at once, and hold the activations of all of them.",
            "Slice x and y before the model sees them.",
            whole_batch,
            _whole_batch_at_once,
        ),
        Mistake(
            "one tape",
            "Your micro-batches go forward one by one, but none goes backward before all are forward: their activations wait.",
            "When may a micro-batch's activations be dropped? Who holds them until then?",
            one_tape,
            _forwards_first,
        ),
        Mistake(
            "one graph",
            "In one graph nothing makes a micro-batch wait for the one before it: TensorFlow computes several at once.",
            "A `tf.function` may hold one micro-batch. Where does the loop stand then?",
            one_graph,
            _graph_too_large,
        ),
        Mistake(
            "an update each",
            "You update after every micro-batch, so the next one meets other weights.",
            "`apply` belongs behind the loop.",
            updates_of_all,
            lambda answers, seed: answers["updates"] == len(_part_rows(**probes.step_sizes(seed))),
        ),
        Mistake(
            "gradients kept",
            "Every micro-batch's gradients are kept until the end: k copies, where one sum would do.",
            "What does your list hold when the loop ends?",
            gradients_kept,
            _too_large(copies_at_most=probes.MICRO_BATCHES + 1),
        ),
        Mistake(
            "activations kept",
            "Something outlives its micro-batch and keeps its activations: a tape that is used again, or a list.",
            "Every micro-batch needs a tape of its own, and nothing but numbers and sums may be kept of it.",
            persistent_tape,
            _too_large(),
        ),
        Mistake(
            "mean of means",
            "Each micro-batch counts alike, and the last one has fewer rows.",
            "A micro-batch's share of the mean is its share of the rows.",
            mean_of_means,
            _changed_as("mean of means"),
        ),
        Mistake(
            "last one dropped",
            "The rows that do not fill a micro-batch are in no gradient.",
            "How many rows are behind the last whole micro-batch?",
            last_dropped,
            _changed_as("last dropped"),
        ),
        Mistake(
            "last loss",
            "The update is right; the loss that you return is the last micro-batch's.",
            "The loss is a mean over all rows too.",
            last_loss_told,
            _last_loss,
        ),
    ),
)


# q4: a plan


def _divisors(local):
    return [size for size in range(local, 0, -1) if local % size == 0]


def _updates_of_examples(examples, case, k):
    """Updates until so many examples were seen; an epoch's last group may not be full."""
    epochs, rest = divmod(examples, case["examples"])
    return epochs * math.ceil(case["examples"] / case["global_batch"]) + math.ceil(rest / case["global_batch"])


def _glued(examples, case, k):
    return math.ceil(examples / case["global_batch"])


def _full_groups(examples, case, k):
    epochs, rest = divmod(examples, case["examples"])
    return epochs * (case["examples"] // case["global_batch"]) + rest // case["global_batch"]


def _micro_steps(examples, case, k):
    return k * _updates_of_examples(examples, case, k)


def _steps_of_a_replica(examples, case, k):
    return _updates_of_examples(examples, case, k) * case["replicas"]


def _plan_group(
    sizes=_divisors,
    sums=lambda k: k > 1,
    replicas=True,
    even=True,
    refuses=True,
    best=max,
    updates=_updates_of_examples,
    warmup=_updates_of_examples,
):
    """The solution, with one thing wrong: see the mistakes for which."""

    def plan_group(**case):
        if even and case["global_batch"] % case["replicas"]:
            raise ValueError("the replicas do not divide the batch")
        local = case["global_batch"] // (case["replicas"] if replicas else 1)

        def needed_bytes(size):
            copies = sums(math.ceil(local / size))
            return case["state_bytes"] + copies * case["gradient_bytes"] + size * case["example_bytes"]

        fitting = [size for size in sizes(local) if needed_bytes(size) <= case["memory_bytes"]]
        if refuses and not fitting:
            raise ValueError("nothing fits")
        size = best(fitting, default=1)
        k = math.ceil(local / size)
        return {
            "micro_batch": size,
            "micro_batches": k,
            "updates": updates(case["epochs"] * case["examples"], case, k),
            "warmup_updates": warmup(case["warmup_examples"], case, k),
        }

    return plan_group


def _plans(answers, seed):
    """(case, the learner's plan, the wanted one) for each run."""
    for case, plan in zip(probes.runs_to_plan(seed), answers["plans"], strict=True):
        try:
            yield case, plan, _plan_group()(**case)
        except ValueError:
            yield case, plan, probes.NO_PLAN


def _run_line(case):
    gigabytes = {name: case[f"{name}_bytes"] / 1e9 for name in ("memory", "state", "gradient", "example")}
    sizes = ", ".join(f"{name} {size:.2f} GB" for name, size in gigabytes.items())
    return f"global batch {case['global_batch']} on {case['replicas']} replicas, {sizes}"


def _size_right(answers, seed):
    for case, plan, wanted in _plans(answers, seed):
        if probes.NO_PLAN in (plan, wanted):
            continue
        if (plan["micro_batch"], plan["micro_batches"]) != (wanted["micro_batch"], wanted["micro_batches"]):
            return f"{_run_line(case)}: you take {plan['micro_batches']} micro-batches of {plan['micro_batch']}"
    return any(plan != probes.NO_PLAN for plan in answers["plans"])


def _updates_right(name):
    def holds(answers, seed):
        for case, plan, wanted in _plans(answers, seed):
            if probes.NO_PLAN not in (plan, wanted) and plan[name] != wanted[name]:
                sizes = f"{case['examples']} examples in global batches of {case['global_batch']}"
                asked = (
                    f"{case['epochs']} epochs"
                    if name == "updates"
                    else f"{case['warmup_examples']} examples of warm-up"
                )
                return f"{sizes}, {asked}: you say {plan[name]}"
        return any(plan != probes.NO_PLAN for plan in answers["plans"])

    return holds


def _refuses_what_does_not_work(answers, seed):
    for case, plan, wanted in _plans(answers, seed):
        if (plan == probes.NO_PLAN) != (wanted == probes.NO_PLAN):
            return f"{_run_line(case)}: you {'raise one' if plan == probes.NO_PLAN else 'raise none'}"
    return True


PLAN = Question(
    name="q4",
    title="Plan a group",
    asks_for=("plan_group",),
    probe=probes.probe_plan,
    targets=(
        Target("the largest micro-batch that divides the local batch and fits, and k", _size_right),
        Target("the updates of all epochs", _updates_right("updates")),
        Target("the updates of the warm-up", _updates_right("warmup_updates")),
        Target("a ValueError where nothing fits or divides, and nowhere else", _refuses_what_does_not_work),
    ),
    mistakes=(
        Mistake(
            "sums forgotten",
            "Your micro-batch fits without the sums, and with them it does not.",
            "What does a replica hold between two micro-batches of a group?",
            _plan_group(sums=lambda k: False),
        ),
        Mistake(
            "sums always",
            "You make room for sums also where the local batch fits at once, and is cut for nothing.",
            "What has to be kept between micro-batches when there is one?",
            _plan_group(sums=lambda k: True),
        ),
        Mistake(
            "does not divide",
            "Your micro-batch fits, but does not divide the local batch.",
            "All micro-batches of a full group have as many examples.",
            _plan_group(sizes=lambda local: range(local, 0, -1)),
        ),
        Mistake(
            "powers of two",
            "You try powers of two alone.",
            "Which numbers divide 40? Not all of them are powers of two.",
            _plan_group(sizes=lambda local: [size for size in _divisors(local) if size & (size - 1) == 0]),
        ),
        Mistake(
            "one example at a time",
            "You take the smallest micro-batch, which wastes the memory that you have, and with it the device's speed.",
            "The largest one that fits.",
            _plan_group(best=min),
        ),
        Mistake(
            "replicas forgotten",
            "You cut the global batch into micro-batches, and each replica has only a part of it.",
            "How many examples does one replica see per update?",
            _plan_group(replicas=False),
        ),
        Mistake(
            "uneven replicas",
            "You plan for replicas that do not divide the global batch.",
            "What is left over when you divide by `replicas`?",
            _plan_group(even=False),
        ),
        Mistake(
            "never refuses",
            "You plan with one example where not even that fits.",
            "What does your loop leave behind when no size passes?",
            _plan_group(refuses=False),
        ),
        Mistake(
            "counted in micro-batches",
            "You count micro-batches. A schedule that was made with these numbers lasts k times too long.",
            "An optimizer that accumulates counts one step per group.",
            _plan_group(updates=_micro_steps, warmup=_micro_steps),
        ),
        Mistake(
            "warm-up in micro-batches",
            "Your updates are right, and the warm-up is counted in micro-batches.",
            "The schedule asks the optimizer for its step: what does that count?",
            _plan_group(warmup=_micro_steps),
        ),
        Mistake(
            "counted per replica",
            "You count an update once for each replica.",
            "All replicas make the same update together.",
            _plan_group(updates=_steps_of_a_replica, warmup=_steps_of_a_replica),
        ),
        Mistake(
            "full groups alone",
            "You leave out each epoch's last update, from a group that is not full.",
            "Round up: the examples that are left make an update too.",
            _plan_group(updates=_full_groups, warmup=_full_groups),
        ),
        Mistake(
            "epochs glued together",
            "You divide all examples by the batch at once, as if a group went on into the next epoch.",
            "An epoch ends with an update. How many does one epoch have?",
            _plan_group(updates=_glued, warmup=_glued),
        ),
        Mistake(
            "warm-up glued together",
            "Your updates are right, but the warm-up takes groups for full that are not.",
            "The warm-up lasts some whole epochs and a part of one. How many updates has each of these?",
            _plan_group(warmup=_glued),
        ),
    ),
)


# q5: two replicas


def _sum_of(array):
    """Of a NumPy array or a tensor."""
    if isinstance(array, np.ndarray):
        return array.sum()
    import tensorflow as tf

    return tf.reduce_sum(array)


def _clipped(gradients, clip_norm):
    """By their common norm; NumPy arrays or tensors."""
    norm = sum(_sum_of(gradient**2) for gradient in gradients) ** 0.5
    if isinstance(norm, np.floating):
        return [gradient * min(1, clip_norm / norm) for gradient in gradients]
    import tensorflow as tf

    return [gradient * tf.minimum(1.0, clip_norm / norm) for gradient in gradients]


def _divided(totals, rows):
    return [total / rows for total in totals]


class _Replica:
    """One learner's way through a group: what is added, what is handed over, what becomes of it."""

    def added(self, gradients, rows):
        return [*(rows * gradient for gradient in gradients), rows]

    def handed(self, sums, clip_norm):
        return sums

    def finished(self, summed, own, clip_norm):
        *totals, rows = summed
        return _clipped(_divided(totals, rows), clip_norm)


class _LocalClip(_Replica):
    def handed(self, sums, clip_norm):
        *totals, rows = sums
        return [*(rows * part for part in _clipped(_divided(totals, rows), clip_norm)), rows]

    def finished(self, summed, own, clip_norm):
        *totals, rows = summed
        return _divided(totals, rows)


class _MeanTwice(_Replica):
    def finished(self, summed, own, clip_norm):
        return _clipped(_divided(summed[:-1], 2 * summed[-1]), clip_norm)


class _MeanAfterClip(_Replica):
    def finished(self, summed, own, clip_norm):
        return _divided(super().finished(summed, own, clip_norm), 2)


class _OwnRows(_Replica):
    def finished(self, summed, own, clip_norm):
        return _clipped(_divided(summed[:-1], own[-1]), clip_norm)


class _LocalMeans(_Replica):
    replicas = 1

    def handed(self, sums, clip_norm):
        return _divided(sums[:-1], sums[-1])

    def finished(self, summed, own, clip_norm):
        return _clipped(_divided(summed, self.replicas), clip_norm)


class _MeanOfLocalMeans(_LocalMeans):
    replicas = 2


class _AllAlike(_Replica):
    def added(self, gradients, rows):
        return [*gradients, 0 * rows + 1]


class _Undivided(_Replica):
    def finished(self, summed, own, clip_norm):
        return _clipped(summed[:-1], clip_norm)


class _SumClipped(_Replica):
    def finished(self, summed, own, clip_norm):
        return _divided(_clipped(summed[:-1], clip_norm), summed[-1])


class _NotClipped(_Replica):
    def finished(self, summed, own, clip_norm):
        return _divided(summed[:-1], summed[-1])


class _EachClipped(_Replica):
    def finished(self, summed, own, clip_norm):
        return [_clipped([mean], clip_norm)[0] for mean in _divided(summed[:-1], summed[-1])]


class _NeverSummed(_Replica):
    def finished(self, summed, own, clip_norm):
        return _clipped(_divided(own[:-1], own[-1]), clip_norm)


def _functions(way, reduces=True):
    """The two names of a learner with this way."""

    def add(sums, gradients, rows, all_reduce):
        return [one + other for one, other in zip(sums, way.added(gradients, rows))]

    def update(sums, clip_norm, all_reduce):
        handed = way.handed(sums, clip_norm)
        return way.finished(all_reduce(handed) if reduces else handed, sums, clip_norm)

    return {"add": add, "update": update}


def _computed_weights(seed, way):
    """[replica][group]: the weights as a vector, in NumPy."""
    first, groups = probes.replica_groups(seed)
    states = [([variable.astype("float64") for variable in first], [0.0, 0.0]) for _ in range(2)]
    seen = [[], []]
    for clip_norm, micro_batches in groups:
        sums = [
            _local_sums(weights, [shards[replica] for shards in micro_batches], way)
            for replica, (weights, _) in enumerate(states)
        ]
        summed = [sum(parts) for parts in zip(*(way.handed(own, clip_norm) for own in sums))]
        for replica, own in enumerate(sums):
            states[replica] = _momentum_step(*states[replica], way.finished(summed, own, clip_norm))
            seen[replica].append(np.concatenate([np.ravel(variable) for variable in states[replica][0]]))
    return np.array(seen)


def _local_sums(weights, shards, way):
    kernel, bias = weights
    sums = [0.0, 0.0, 0.0]
    for x, y in shards:
        errors = 2 * (x @ kernel + bias - y) / len(x)
        added = way.added([x.T @ errors, errors.sum(axis=0)], len(x))
        sums = [one + other for one, other in zip(sums, added)]
    return sums


def _momentum_step(weights, velocity, gradients):
    velocity = [probes.MOMENTUM * v - probes.LARGE_RATE * gradient for v, gradient in zip(velocity, gradients)]
    return [variable + v for variable, v in zip(weights, velocity)], velocity


def _one_device(answers, seed):
    first = np.concatenate([np.ravel(variable) for variable in probes.replica_groups(seed)[0]])
    wanted, got = _computed_weights(seed, _Replica()) - first, np.array(answers["weights"])
    if got.shape != wanted.shape:
        return "your update returns gradients of other shapes"
    got = got - first
    for group in range(len(wanted[0])):
        off = _off(got[:, group], wanted[:, group])
        if not off <= FLOAT32:
            return (
                f"after the {('first, clipped', 'second')[group]} group the weights' change is off by {100 * off:,.4g}%"
            )
    return True


def _replicas_alike(answers, seed):
    off = _off(*answers["weights"])
    return bool(off <= FLOAT32) or f"they differ by {100 * off:,.4g}%"


def _add_is_silent(answers, seed):
    numbers = answers["summed"]["add"]
    return not numbers or f"yours sums {sum(numbers)} numbers in {len(numbers)} all-reduces"


def _one_crossing(answers, seed):
    first, groups = probes.replica_groups(seed)
    wanted, got = 1 + sum(variable.size for variable in first), sum(answers["summed"]["update"]) / len(groups)
    if not got and not answers["summed"]["add"]:
        return "nothing goes through the `all_reduce` that you are given"
    return got <= wanted or f"yours sums {got:g} numbers a group, and weights and rows are {wanted}"


def _crossing_twice():
    """The gradients are summed again at the end, as a Keras optimizer would do it."""
    names = _functions(_MeanAfterClip())

    def update(sums, clip_norm, all_reduce):
        return all_reduce(names["update"](sums, clip_norm, all_reduce))

    return {**names, "update": update}


def _summed_again(answers, seed):
    crossed = bool(answers["summed"]["update"])
    return crossed and _one_device(answers, seed) is True and _one_crossing(answers, seed) is not True


def _every_micro_batch():
    def add(sums, gradients, rows, all_reduce):
        return [one + other for one, other in zip(sums, all_reduce(_Replica().added(gradients, rows)))]

    return {"add": add, "update": _functions(_Replica(), reduces=False)["update"]}


def _summed_in_add(answers, seed):
    return bool(answers["summed"]["add"]) and _one_device(answers, seed) is True


def _as_if(way):
    """The wrong names, and how to recognise them by the weights that come of them."""

    def recognise(answers, seed):
        return _off(answers["weights"], _computed_weights(seed, way)) <= FLOAT32

    return _functions(way), recognise


REPLICAS = Question(
    name="q5",
    title="Two replicas, one communication",
    asks_for=("add", "update"),
    probe=probes.probe_two_replicas,
    targets=(
        Target("after each group the weights equal one device's big batch, to 0.001% of their change", _one_device),
        Target("both replicas have the same weights", _replicas_alike),
        Target("`add` sums nothing over the replicas", _add_is_silent),
        Target("`update` sums each gradient once, and the rows", _one_crossing),
    ),
    mistakes=(
        Mistake(
            "every micro-batch",
            "The weights are right, but the gradients cross the replicas with every micro-batch.",
            "A sum of sums is the same, whoever adds first. Which function is called once per group?",
            _every_micro_batch(),
            _summed_in_add,
        ),
        Mistake(
            "crossing twice",
            "The weights are right, but more crosses the replicas at the end of a group than one copy of the gradients.",
            "What does every replica already know after the first all-reduce?",
            _crossing_twice(),
            _summed_again,
        ),
        Mistake(
            "never summed",
            "Each replica goes on with its own rows' gradient, so the copies of the weights drift apart.",
            "Who brings the replicas' sums together?",
            _functions(_NeverSummed(), reduces=False),
            _as_if(_NeverSummed())[1],
        ),
        Mistake(
            "parts clipped",
            "Each replica clips its own part, and the group's gradient is something else than the sum of clipped parts.",
            "Which gradient has the norm that the big batch would have been clipped by? When is it known?",
            *_as_if(_LocalClip()),
        ),
        Mistake(
            "sum clipped",
            "You clip the sum over rows, and divide what is left.",
            "The norm that `clip_norm` is about is that of the mean.",
            *_as_if(_SumClipped()),
        ),
        Mistake(
            "not clipped",
            "The gradient is right, and it is not clipped.",
            "What is `clip_norm` for?",
            *_as_if(_NotClipped()),
        ),
        Mistake(
            "each variable alone",
            "You clip each variable by its own norm, which turns the step in another direction.",
            "Global norm: the norm of all gradients together, as if they were one vector.",
            *_as_if(_EachClipped()),
        ),
        Mistake(
            "mean twice",
            "You divide by the rows of all replicas, and by the number of replicas as well.",
            "The rows are summed over the replicas already.",
            *_as_if(_MeanTwice()),
        ),
        Mistake(
            "mean after clipping",
            "You divide by the number of replicas at the end, as for an optimizer that sums what it gets.",
            "The docstring of `update`: what does this optimizer do with what you return?",
            *_as_if(_MeanAfterClip()),
        ),
        Mistake(
            "own rows",
            "You divide the sum of all replicas by the rows of one.",
            "What have you given to `all_reduce`? The rows have to cross as well.",
            *_as_if(_OwnRows()),
        ),
        Mistake(
            "sum of local means",
            "Each replica hands over a mean already, and their sum is N times too large.",
            "Hand over sums, and divide when all are together.",
            *_as_if(_LocalMeans()),
        ),
        Mistake(
            "mean of local means",
            "Each replica counts alike, and they have seen different numbers of rows.",
            "Hand over sums, and divide when all are together.",
            *_as_if(_MeanOfLocalMeans()),
        ),
        Mistake(
            "micro-batches alike",
            "Each micro-batch counts alike on each replica, however many rows it has there.",
            "`gradients` are of a mean over `rows` rows. What makes a sum over rows of them?",
            *_as_if(_AllAlike()),
        ),
        Mistake(
            "not divided",
            "You never divide by the rows. Where the group is clipped that does not show; where it is not, the step is huge.",
            "The big batch's gradient is a mean.",
            *_as_if(_Undivided()),
        ),
    ),
)


_LOOP = {name: {"weights": forms.any_array, "updates": forms.whole} for name in probes.OPTIMIZERS}
_PLAN = dict.fromkeys(("micro_batch", "micro_batches", "updates", "warmup_updates"), forms.number)
QUESTIONS = (
    forms.formed(GROUPS, {"streams": [{"gradients": [forms.array], "unchanged": forms.flag}]}),
    forms.formed(LOOPS, dict.fromkeys(probes.LOOPS, _LOOP)),
    forms.formed(
        BIG_STEP,
        {
            "loss": forms.number,
            "losses": [forms.number],
            "passes": [(forms.text, forms.whole, forms.flag)],
            "updates": forms.whole,
            "bytes": dict.fromkeys(("gradients", "one", "yours"), forms.count),
            "off": {str: forms.distance},
        },
    ),
    forms.formed(PLAN, {"plans": [forms.either(_PLAN | {str: forms.anything}, forms.words(probes.NO_PLAN))]}),
    forms.formed(
        REPLICAS, {"weights": (forms.any_array,) * 2, "summed": {"add": [forms.size], "update": [forms.size]}}
    ),
)
