"""Exercise 08: a group's gradient, three loops, a step in little memory, a plan, two replicas.

Needs NumPy; mistakes that a check runs need TensorFlow.
"""

import math

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.numbers import off
from course_lib.exercises.probes import ex08 as probes
from course_lib.exercises.probes import ex08_memory as memory_probe
from course_lib.exercises.probes.cases import REFUSED
from course_lib.exercises.question import Target

question = question_maker.of("08_gradient_accumulation")
FLOAT32 = 1e-5  # relative: a dozen products and sums in float32
CONVOLUTION = 1e-4  # relative: sums over all pixels of a thousand images, in another order
MEMORY_SLACK = 1.15  # of q3's limit


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
            error = off(got, np.average(gradients, axis=0, weights=rows))
            if not error <= FLOAT32:
                return f"{_setting(micro_batches, k)}: group {number} is off by {100 * error:,.4g}%"
    return _one_per_group(answers, seed) is True


def _left_as_given(answers, seed):
    return all(answer["unchanged"] for answer in answers["streams"]) or "they hold other numbers after your call"


GROUPS = question(
    name="q1",
    title="The group's gradient",
    asks_for=("group_gradients",),
    probe=probes.probe_group_gradients,
    form={"streams": [{"gradients": [forms.array], "unchanged": forms.flag}]},
    targets=(
        Target("one gradient per group, also for a last one that is not full", _one_per_group),
        Target("each is the gradient of the mean over all rows of its group, to 0.001%", _as_one_batch),
        Target("the arrays that you are given stay as they are", _left_as_given),
    ),
)


# q2: three loops


def _last_or_full(number, count, k, last):
    return count == k or number == last


class _Linear:
    """A linear model with one of q2's optimizers, in NumPy: Keras' own formulas, and Adam's defaults."""

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


def _weights_after(seed, optimizer, divisor=lambda count, k: count, due=_last_or_full, masked=False):
    """The weights after one of q2's loops.

    divisor  (count, k) -> what a group's sum is divided by
    due      (number, at least 1; count in the group; k; last number) -> whether to update now
    masked   the optimizer gets zeros instead of nothing
    """
    first, micro_batches, k = probes.linear_epoch(seed)
    model, total, count = _Linear(first, optimizer), 0.0, 0
    for number, (x, y) in enumerate(micro_batches, 1):
        total, count = total + model.gradient_of(x, y), count + 1
        if due(number, count, k, len(micro_batches)):
            model.apply(total / divisor(count, k))
            total, count = 0.0, 0
        elif masked:
            model.apply(0.0 * total)
    return model.weights


def _is_big_batch(loop):
    """A target: this loop's weights are those of the big batch, with every optimizer."""

    def holds(answers, seed):
        errors = {name: off(ran["weights"], _weights_after(seed, name)) for name, ran in answers[loop].items()}
        said = ", ".join(f"{100 * share:,.4g}% with {name}" for name, share in errors.items() if not share <= FLOAT32)
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


def _ran_as(*loops, **wrong):
    """Recognise that one of these loops has run with this wrong, with every optimizer."""

    def recognise(answers, seed):
        weights = {name: _weights_after(seed, name, **wrong) for name in probes.OPTIMIZERS}
        return any(
            all(off(ran["weights"], weights[name]) <= 10 * FLOAT32 for name, ran in answers[loop].items())
            for loop in loops
        )

    return recognise


_LOOP = {name: {"weights": forms.any_array, "updates": forms.whole} for name in probes.OPTIMIZERS}
LOOPS = question(
    name="q2",
    title="Repair three loops",
    asks_for=probes.LOOPS,
    probe=probes.probe_loops,
    form=dict.fromkeys(probes.LOOPS, _LOOP),
    targets=(
        *(
            Target(f"{loop} equals the big batch to 0.001%, with every optimizer", _is_big_batch(loop))
            for loop in probes.LOOPS
        ),
        Target("each returns its updates: one per group, the last one included", _updates_of_all),
    ),
    recognise={
        "a as it was": _ran_as("loop_a", divisor=lambda count, k: count * k),
        "b as it was": _ran_as("loop_b", masked=True),
        "c as it was": _ran_as("loop_c", due=lambda number, count, k, last: number % k == 1 or number == last),
        "no mean": _ran_as(*probes.LOOPS, divisor=lambda count, k: 1),
        "divided by k": _ran_as(*probes.LOOPS, divisor=lambda count, k: k),
        "last group forgotten": _ran_as(*probes.LOOPS, due=lambda number, count, k, last: count == k),
        "every micro-batch": _ran_as(*probes.LOOPS, due=lambda number, count, k, last: True),
    },
)


# q3: a step in the memory of one micro-batch


def _little_memory(answers, seed):
    held = answers["bytes"]
    yours, one, gradients = (f"{held[name] / 2**20:.1f} MiB" for name in ("yours", "one", "gradients"))
    said = f"yours needs {yours}; a plain step on one micro-batch needs {one}, and a copy of the gradients {gradients}"
    return held["yours"] <= MEMORY_SLACK * (held["one"] + held["gradients"]) or said


def _changed_as_the_big_batch(answers, seed):
    error = answers["off"]["right"]
    return error <= CONVOLUTION or f"off by {100 * error:,.3g}%"


def _one_update(answers, seed):
    return answers["updates"] == 1 or f"it counts {answers['updates']}"


def _mean_loss_of_all(answers, seed):
    sizes = memory_probe.step_sizes(seed)
    error = abs(answers["loss"] / np.average(answers["losses"], weights=_part_rows(**sizes)) - 1)
    return bool(error <= CONVOLUTION) or f"off by {100 * error:,.3g}%"


def _part_rows(micro_batch, rows, seed):
    return [min(micro_batch, rows - at) for at in range(0, rows, micro_batch)]


def _forwards(answers):
    return [(rows, in_graph) for name, rows, in_graph in answers["passes"] if name == "forward"]


def _whole_batch_at_once(answers, seed):
    return max(rows for rows, _ in _forwards(answers)) > memory_probe.step_sizes(seed)["micro_batch"]


def _forwards_first(answers, seed):
    names = [name for name, _, in_graph in answers["passes"] if not in_graph]
    return names[:2] == ["forward", "forward"]


def _graph_too_large(answers, seed):
    return any(in_graph for _, in_graph in _forwards(answers)) and _little_memory(answers, seed) is not True


def _right_and_too_large(answers, seed):
    return _changed_as("right")(answers, seed) and _little_memory(answers, seed) is not True


def _changed_as(candidate):
    return lambda answers, seed: answers["updates"] == 1 and answers["off"][candidate] <= CONVOLUTION


BIG_STEP = question(
    name="q3",
    title="A big batch under a memory limit",
    asks_for=("big_step",),
    probe=memory_probe.probe_big_step,
    form={
        "loss": forms.number,
        "losses": [forms.number],
        "passes": [(forms.text, forms.whole, forms.flag)],
        "updates": forms.whole,
        "bytes": dict.fromkeys(("gradients", "one", "yours"), forms.count),
        "off": {str: forms.distance},
    },
    takes_long=True,
    targets=(
        Target("at its peak, at most 1.15 times one micro-batch and a copy of the gradients", _little_memory),
        Target("the weights change as by one step on the whole batch, to 0.01%", _changed_as_the_big_batch),
        Target("the optimizer counts one update", _one_update),
        Target("the loss returned is the mean over all rows, to 0.01%", _mean_loss_of_all),
    ),
    recognise={
        "whole batch": _whole_batch_at_once,
        "forward first": _forwards_first,
        "one graph": _graph_too_large,
        "an update each": lambda answers, seed: answers["updates"] == len(_part_rows(**memory_probe.step_sizes(seed))),
        "too much kept": _right_and_too_large,
        "mean of means": _changed_as("mean of means"),
        "last one dropped": _changed_as("last dropped"),
    },
)


# q4: a plan


def _updates_in(examples, case):
    """Updates until so many examples were seen; each epoch ends with one."""
    epochs, rest = divmod(examples, case["examples"])
    return -(-case["examples"] // case["global_batch"]) * epochs - (-rest // case["global_batch"])


def _wanted_plan(case):
    local, uneven = divmod(case["global_batch"], case["replicas"])
    room = case["memory_bytes"] - case["state_bytes"]
    several = [size for size in range(1, local) if local % size == 0]
    fitting = [size for size in several if case["gradient_bytes"] + size * case["example_bytes"] <= room]
    if local * case["example_bytes"] <= room:
        fitting.append(local)
    if uneven or not fitting:
        return REFUSED
    return {
        "micro_batch": fitting[-1],
        "micro_batches": local // fitting[-1],
        "updates": _updates_in(case["epochs"] * case["examples"], case),
        "warmup_updates": _updates_in(case["warmup_examples"], case),
    }


def _plans(answers, seed):
    """(case, the learner's plan, the wanted one) for each run."""
    for case, plan in zip(probes.runs_to_plan(seed), answers["plans"], strict=True):
        yield case, plan, _wanted_plan(case)


def _run_line(case):
    gigabytes = {name: case[f"{name}_bytes"] / 1e9 for name in ("memory", "state", "gradient", "example")}
    sizes = ", ".join(f"{name} {size:.2f} GB" for name, size in gigabytes.items())
    return f"global batch {case['global_batch']} on {case['replicas']} replicas, {sizes}"


def _size_right(answers, seed):
    for case, plan, wanted in _plans(answers, seed):
        if REFUSED in (plan, wanted):
            continue
        if (plan["micro_batch"], plan["micro_batches"]) != (wanted["micro_batch"], wanted["micro_batches"]):
            return f"{_run_line(case)}: you take {plan['micro_batches']} micro-batches of {plan['micro_batch']}"
    return any(plan != REFUSED for plan in answers["plans"])


def _updates_right(name):
    def holds(answers, seed):
        for case, plan, wanted in _plans(answers, seed):
            if REFUSED not in (plan, wanted) and plan[name] != wanted[name]:
                sizes = f"{case['examples']} examples in global batches of {case['global_batch']}"
                length = f"{case['epochs']} epochs" if name == "updates" else f"{case['warmup_examples']} of warm-up"
                return f"{sizes}, {length}: you say {plan[name]}"
        return any(plan != REFUSED for plan in answers["plans"])

    return holds


def _refuses_what_does_not_work(answers, seed):
    for case, plan, wanted in _plans(answers, seed):
        if (plan == REFUSED) != (wanted == REFUSED):
            return f"{_run_line(case)}: you {'raise one' if plan == REFUSED else 'raise none'}"
    return True


_PLAN = dict.fromkeys(("micro_batch", "micro_batches", "updates", "warmup_updates"), forms.number)
PLAN = question(
    name="q4",
    title="Plan a group",
    asks_for=("plan_group",),
    probe=probes.probe_plan,
    form={"plans": [forms.either(_PLAN | {str: forms.anything}, forms.words(REFUSED))]},
    targets=(
        Target("the largest micro-batch that divides the local batch and fits, and k", _size_right),
        Target("the updates of all epochs", _updates_right("updates")),
        Target("the updates of the warm-up", _updates_right("warmup_updates")),
        Target("a ValueError where nothing fits or divides, and nowhere else", _refuses_what_does_not_work),
    ),
)


# q5: two replicas


def _wanted_weights(seed):
    """[group]: the weights, as a vector, of one device that takes each group as one batch."""
    (kernel, bias), groups = probes.replica_groups(seed)
    weights, velocity, seen = np.concatenate([kernel.ravel(), bias]).astype("float64"), 0.0, []
    for clip_norm, micro_batches in groups:
        x, y = (np.concatenate(parts) for parts in zip(*(shard for shards in micro_batches for shard in shards)))
        x = np.hstack([x, np.ones_like(y)])
        gradient = 2 * x.T @ (x @ weights - y[:, 0]) / len(x)
        gradient *= min(1, clip_norm / np.linalg.norm(gradient))
        velocity = probes.MOMENTUM * velocity - probes.LARGE_RATE * gradient
        weights = weights + velocity
        seen.append(weights)
    return np.array(seen)


def _one_device(answers, seed):
    first = np.concatenate([np.ravel(variable) for variable in probes.replica_groups(seed)[0]])
    wanted, got = _wanted_weights(seed), np.array(answers["weights"])
    if got.shape != (2, *wanted.shape):
        return "your update returns gradients of other shapes"
    for group, name in enumerate(("first, clipped", "second")):
        error = max(off(replica[group] - first, wanted[group] - first) for replica in got)
        if not error <= FLOAT32:
            return f"after the {name} group the weights' change is off by {100 * error:,.4g}%"
    return True


def _replicas_alike(answers, seed):
    error = off(*answers["weights"])
    return bool(error <= FLOAT32) or f"they differ by {100 * error:,.4g}%"


def _add_is_silent(answers, seed):
    numbers = answers["summed"]["add"]
    return not numbers or f"yours sums {sum(numbers)} numbers in {len(numbers)} all-reduces"


def _one_crossing(answers, seed):
    first, groups = probes.replica_groups(seed)
    wanted, got = 1 + sum(variable.size for variable in first), sum(answers["summed"]["update"]) / len(groups)
    if not got and not answers["summed"]["add"]:
        return "nothing goes through the `all_reduce` that you are given"
    return got <= wanted or f"yours sums {got:g} numbers per group; weights and rows are {wanted}"


def _summed_in_add(answers, seed):
    return bool(answers["summed"]["add"]) and _one_device(answers, seed) is True


REPLICAS = question(
    name="q5",
    title="Two replicas, one communication",
    asks_for=("add", "update"),
    probe=probes.probe_two_replicas,
    form={"weights": (forms.any_array,) * 2, "summed": {"add": [forms.size], "update": [forms.size]}},
    targets=(
        Target("after each group the weights equal one device's big batch, to 0.001% of their change", _one_device),
        Target("both replicas have the same weights", _replicas_alike),
        Target("`add` sums nothing over the replicas", _add_is_silent),
        Target("`update` sums each gradient once, and the rows", _one_crossing),
    ),
    recognise={"every micro-batch": _summed_in_add},
)


QUESTIONS = (GROUPS, LOOPS, BIG_STEP, PLAN, REPLICAS)
