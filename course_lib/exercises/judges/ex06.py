"""Exercise 06: a model on two devices, a number of micro-batches, 1F1B, balance, one stage of a pipeline.

Needs NumPy; the wrong answers of q1 need TensorFlow when they run.
"""

import itertools
import math

import numpy as np

from course_lib import pipeline
from course_lib.errors import CourseError
from course_lib.exercises.judges import forms
from course_lib.exercises.probes import ex06 as probes
from course_lib.exercises.question import Mistake, Question, Target

FLOAT32 = 1e-5  # relative: sums of a dozen products in float32


def _off(got, wanted) -> float:
    """How far an array is from what is wanted, as a share of it; infinite where the shapes differ."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    return np.linalg.norm(got - wanted) / np.linalg.norm(wanted) if got.shape == wanted.shape else math.inf


# q1: a model on two devices


def _one_device(seed, upstream=None):
    """The gradients of every kernel and bias, layer by layer, in NumPy and float64.

    upstream  the gradient that stage 0 gets for its output in place of the right one
    """
    stages, (values, y) = probes.two_stages(seed), (part.astype("float64") for part in probes.two_stage_batch(seed))
    activations = [[], []]
    for stage, layers in enumerate(stages):
        for kernel, bias in layers:
            inputs, values = values, np.tanh(values @ kernel + bias)
            activations[stage].append((inputs, values))
    gradient, found = 2 * (values - y) / y.size, []
    for stage in (1, 0):
        if stage == 0 and upstream is not None:
            gradient = np.full_like(gradient, upstream)
        for (kernel, _), (inputs, values) in zip(reversed(stages[stage]), reversed(activations[stage])):
            by_sum = gradient * (1 - values**2)
            found = [inputs.T @ by_sum, by_sum.sum(axis=0), *found]
            gradient = by_sum @ kernel.T
    return found


def _weights_placed(run, seed):
    wanted = [2 * len(layers) for layers in probes.two_stages(seed)]
    if (counts := list(map(len, run["variables"]))) != wanted:
        return f"your stages have {counts} variables, and the makers' {wanted}"
    for stage, devices in enumerate(run["variables"]):
        if wrong := sum(device != stage for device in devices):
            return f"{wrong} of the {len(devices)} variables of stage {stage} lie elsewhere"
    return ""


def _products(run, stage, kind):
    """The devices of a stage's matrix products in one pass."""
    return [device for number, which, device in run["products"] if (number, which) == (stage, kind)]


def _expected(seed, stage, kind):
    layers = len(probes.two_stages(seed)[stage])
    return layers if kind == "forward" else 2 * layers - (stage == 0)  # nobody needs the gradient of x


def _ran_in_place(kind):
    def misses(run, seed):
        for stage in (0, 1):
            ran, wanted = _products(run, stage, kind), _expected(seed, stage, kind)
            if len(ran) < wanted:
                return f"of {wanted} products of stage {stage}, {len(ran)} are in the graph under its layers' names"
            if wrong := sum(device != stage for device in ran):
                return f"{wrong} of the {len(ran)} products of stage {stage} ran on another device"
        return ""

    return misses


def _gradients_off(run, seed):
    got, wanted = run["gradients"], _one_device(seed)
    if len(got) != len(wanted):
        return f"you return {len(got)} gradients for {len(wanted)} variables"
    if missing := sum(gradient is None for gradient in got):
        return f"{missing} of {len(got)} gradients are None"
    shapes = [(one.shape, other.shape) for one, other in zip(got, wanted, strict=True) if one.shape != other.shape]
    if shapes:
        return "one of shape {}, and its variable has {}".format(*shapes[0])
    off = max(map(_off, got, wanted))
    return "" if off <= FLOAT32 else f"off by {100 * off:,.4g}%"


def _in_both_runs(misses):
    """A target over both orders of the devices: misses(run, seed) says what is wrong, or nothing."""

    def holds(answers, seed):
        for how, run in zip(("", "with the devices exchanged, "), answers["runs"], strict=True):
            if wrong := misses(run, seed):
                return how + wrong
        return True

    return holds


def _place(first=0, second=1):
    """A `place` that puts the stages under these of the two devices."""

    def place(makers, devices):
        import tensorflow as tf

        stages = []
        for make, number in zip(makers, (first, second)):
            with tf.device(devices[number]):
                stages.append(make())
        return stages

    return place


def _stopped(hidden):
    import tensorflow as tf

    return tf.stop_gradient(hidden)


def _one_tape(forward=(0, 1), backward=None, boundary=lambda hidden: hidden):
    """One tape over both stages.

    forward   which device each stage is called under; None: neither
    backward  the device that its gradient is taken under; None: under none
    boundary  what stage 1 gets of stage 0's output
    """

    def gradients(stages, devices, x, y):
        import tensorflow as tf

        first, second = (devices[number] for number in forward) if forward else (None, None)
        with tf.GradientTape() as tape:
            with tf.device(first):
                hidden = stages[0](x)
            with tf.device(second):
                loss = tf.reduce_mean((stages[1](boundary(hidden)) - y) ** 2)
        with tf.device(None if backward is None else devices[backward]):
            return tape.gradient(loss, [v for stage in stages for v in stage.trainable_variables])

    return gradients


def _asked_twice(stages, devices, x, y):
    import tensorflow as tf

    with tf.GradientTape(persistent=True) as tape:
        with tf.device(devices[0]):
            hidden = stages[0](x)
        with tf.device(devices[1]):
            loss = tf.reduce_mean((stages[1](hidden) - y) ** 2)
    found = []
    for stage, device in zip(stages, devices):
        with tf.device(device):
            found += tape.gradient(loss, stage.trainable_variables)
    return found


def _two_tapes(watched=True, unplaced=False):
    """The solution; or without the boundary's gradient; or with stage 0's backward under no device."""

    def gradients(stages, devices, x, y):
        import tensorflow as tf

        with tf.device(devices[0]), tf.GradientTape() as first_tape:
            hidden = stages[0](x)
        with tf.device(devices[1]):
            with tf.GradientTape() as second_tape:
                if watched:
                    second_tape.watch(hidden)
                loss = tf.reduce_mean((stages[1](hidden) - y) ** 2)
            *second, boundary = second_tape.gradient(loss, [*stages[1].trainable_variables, hidden])
        with tf.device(None if unplaced else devices[0]):
            first = first_tape.gradient(hidden, stages[0].trainable_variables, output_gradients=boundary)
        return [*first, *second]

    return gradients


def _second_first(stages, devices, x, y):
    found, first = _two_tapes()(stages, devices, x, y), len(stages[0].trainable_variables)
    return [*found[first:], *found[:first]]


def _placed(gradients, place=None):
    return {"place": place or _place(), "gradients": gradients}


def _backward_on(answers, seed, *devices):
    """Whether in each run the forward pass is placed, and all of the backward pass is on this one of the two devices."""
    return all(
        not _ran_in_place("forward")(run, seed)
        and {device for stage in (0, 1) for device in _products(run, stage, "backward")} == {device}
        for run, device in zip(answers["runs"], devices)
    )


def _more_than_once(answers, seed):
    run = answers["runs"][0]
    return any(len(_products(run, stage, "backward")) > _expected(seed, stage, "backward") for stage in (0, 1))


def _by_luck(answers, seed):
    misses = [_weights_placed, _ran_in_place("forward"), _ran_in_place("backward")]
    wrong = [any(miss(run, seed) for miss in misses) for run in answers["runs"]]
    return sum(wrong) == 1


def _are(answers, wanted):
    got = answers["runs"][0]["gradients"]
    return all(one is not None for one in got) and max(map(_off, got, wanted)) <= FLOAT32


def _second_come_first(answers, seed):
    wanted, first = _one_device(seed), 2 * len(probes.two_stages(seed)[0])
    return _are(answers, [*wanted[first:], *wanted[:first]])


def _no_gradient_before_the_boundary(answers, seed):
    first = 2 * len(probes.two_stages(seed)[0])
    missing = [gradient is None or not np.any(gradient) for gradient in answers["runs"][0]["gradients"]]
    return all(missing[:first]) and not any(missing[first:])


PLACEMENT = Question(
    name="q1",
    title="Two devices, and the proof",
    asks_for=("place", "gradients"),
    probe=probes.probe_placement,
    targets=(
        Target(
            "every variable of stage 0 lies on the first device, of stage 1 on the second",
            _in_both_runs(_weights_placed),
        ),
        Target(
            "every matrix product of the forward pass runs on its stage's device",
            _in_both_runs(_ran_in_place("forward")),
        ),
        Target(
            "every matrix product of the backward pass runs on its stage's device",
            _in_both_runs(_ran_in_place("backward")),
        ),
        Target("the gradients equal one device's, to 0.001%", _in_both_runs(_gradients_off)),
    ),
    mistakes=(
        Mistake(
            "through NumPy",
            "`.numpy()` takes the boundary out of TensorFlow: a traced step has no numbers yet.",
            "Pass tensors on. Each tape records its own stage, so nothing has to be cut between them.",
            _placed(_one_tape(boundary=lambda hidden: hidden.numpy())),
            lambda answers, seed: "has no attribute 'numpy'" in answers.get("stopped", {}).get("error", ""),
        ),
        Mistake(
            "devices exchanged",
            "Stage 0 is on the second device, and stage 1 on the first.",
            "The order of the two names.",
            _placed(_one_tape(forward=(1, 0)), _place(1, 0)),
            lambda answers, seed: all(
                [set(devices) for devices in run["variables"]] == [{1}, {0}] for run in answers["runs"]
            ),
        ),
        Mistake(
            "weights on one device",
            "All weights lie on one device, so the model has to fit there.",
            "A variable lies where it is made. Who makes these, and under which device?",
            _placed(_two_tapes(), _place(0, 0)),
            lambda answers, seed: (
                len({device for devices in answers["runs"][0]["variables"] for device in devices}) == 1
            ),
        ),
        Mistake(
            "boundary cut",
            "No gradient gets past the boundary: stage 0 has none.",
            "`stop_gradient` and `tf.constant` end what a tape can follow. What does stage 0's tape start from, going back?",
            _placed(_one_tape(boundary=_stopped)),
            _no_gradient_before_the_boundary,
        ),
        Mistake(
            "boundary gradient missing",
            "Stage 0's gradients are those of the sum of its outputs: the loss has no part in them.",
            "Print the boundary's gradient. If it is None, did stage 1's tape watch its input? If not, who takes it?",
            _placed(_two_tapes(watched=False)),
            lambda answers, seed: _are(answers, _one_device(seed, upstream=1)),
        ),
        Mistake(
            "order of the gradients",
            "Your gradients are right, and those of stage 1 come first.",
            "The docstring's last line.",
            _placed(_second_first),
            _second_come_first,
        ),
        Mistake(
            "usual snippet",
            "The weights moved, and every product runs on one device.",
            "A product runs where its layer is called. Name the device inside the step.",
            _placed(_one_tape(forward=None)),
            lambda answers, seed: all(
                len({device for _, _, device in run["products"]}) == 1 for run in answers["runs"]
            ),
        ),
        Mistake(
            "stages computed twice",
            "Some products of the backward pass run twice: each call of `gradient` goes back from the loss.",
            "Stage 1 has the boundary's gradient already. From what can stage 0 start?",
            _placed(_asked_twice),
            _more_than_once,
        ),
        Mistake(
            "forward alone",
            "The forward pass is placed, and all of the backward pass runs on TensorFlow's default device.",
            "Under which device do you call `gradient`?",
            _placed(_one_tape()),
            lambda answers, seed: _backward_on(answers, seed, 0, 1),
        ),
        Mistake(
            "backward on the second device",
            "The forward pass is placed, and all of the backward pass runs on the second device.",
            "Going back changes the device too. How many tapes does that take?",
            _placed(_one_tape(backward=1)),
            lambda answers, seed: _backward_on(answers, seed, 1, 1),
        ),
        Mistake(
            "right by luck",
            "Something stands under no device. It runs on the default one, which is right for one of the stages alone.",
            "Go through your calls one by one: making a stage, calling it, asking its tape.",
            _placed(_two_tapes(unplaced=True)),
            _by_luck,
        ),
    ),
)


# q2: a number of micro-batches


def _choose(
    bubble=lambda p, m: (p - 1) / (m + p - 1),
    strictly=False,
    divides=True,
    memory=True,
    held=None,
    same_for_both="",
    whole_batch=False,
    stages=slice(None),
    best=min,
    error=True,
):
    """The solution, with one thing wrong: see the mistakes for which.

    held  (m, p, stage) -> micro-batches that 1F1B holds; min(m, p - stage) unless given
    """

    def choose_micro_batches(schedule, batch, example_bytes, largest_bubble, memory_bytes):
        p, kind = len(example_bytes), same_for_both or schedule

        def small_enough(m):
            share = bubble(p, m)
            return share < largest_bubble if strictly else share <= largest_bubble

        def needed(m, stage, one):
            in_turns = held(m, p, stage) if held else min(m, p - stage)
            return (m if kind == "GPipe" else in_turns) * one * (batch if whole_batch else batch / m)

        def fits(m):
            each = [needed(m, stage, one) for stage, one in enumerate(example_bytes)]
            return not memory or max(each[stages]) <= memory_bytes

        fitting = [m for m in range(1, batch + 1) if not (divides and batch % m) and small_enough(m) and fits(m)]
        if fitting:
            return best(fitting)
        if error:
            raise ValueError("no number of micro-batches fits")
        return batch

    return choose_micro_batches


def _told(case, m):
    """The case and the answer, for a detail."""
    sizes = [f"{one / 1e6:.4g}" for one in case["example_bytes"]]
    each = sizes[0] if len(set(sizes)) == 1 else ", ".join(sizes)
    return (
        f"{case['schedule']} on {len(sizes)} stages, a batch of {case['batch']}, {each} MB an example, "
        f"{case['memory_bytes'] / 1e6:.4g} MB for each stage, bubble at most {case['largest_bubble']:g}: "
        f"yours " + ("raises ValueError" if m == probes.NO_ANSWER else f"is {m}")
    )


def _counts(seed):
    return [(case, probes.ask_for_one(_choose(), case)) for case in probes.pipelines(seed)]


def _each_count(wrong):
    """A target that no answer is wrong(case, answer, the smallest that fits)."""

    def holds(answers, seed):
        for (case, wanted), got in zip(_counts(seed), answers["counts"], strict=True):
            if wrong(case, got, wanted):
                return _told(case, got)
        return True

    return holds


def _not_divided(case, got, wanted):
    return got != probes.NO_ANSWER and (got < 1 or bool(case["batch"] % got))


def _bubble_too_large(case, got, wanted):
    p = len(case["example_bytes"])
    return got != probes.NO_ANSWER and (p - 1) / (got + p - 1) > case["largest_bubble"]


def _too_much_memory(case, got, wanted):
    if got == probes.NO_ANSWER:
        return False
    p = len(case["example_bytes"])
    held = [got if case["schedule"] == "GPipe" else min(got, p - stage) for stage in range(p)]
    most = max(count * one * case["batch"] / got for count, one in zip(held, case["example_bytes"]))
    return most > case["memory_bytes"]


MICRO_BATCHES = Question(
    name="q2",
    title="How many micro-batches?",
    asks_for=("choose_micro_batches",),
    probe=probes.probe_micro_batches,
    targets=(
        Target("the micro-batches divide the batch", _each_count(_not_divided)),
        Target("the bubble is at most the given share", _each_count(_bubble_too_large)),
        Target("no stage holds more activations than its memory", _each_count(_too_much_memory)),
        Target(
            "a ValueError where nothing fits, and only there",
            _each_count(lambda case, got, wanted: (got == probes.NO_ANSWER) != (wanted == probes.NO_ANSWER)),
        ),
        Target(
            "no smaller number would do",
            _each_count(lambda case, got, wanted: probes.NO_ANSWER not in (got, wanted) and got > wanted),
        ),
    ),
    mistakes=(
        Mistake(
            "bubble over the work",
            "You divide the idle time by the time of work; the bubble is its share of all the time.",
            "(p - 1) / m compares with the work alone. What does a step take in all?",
            _choose(bubble=lambda p, m: (p - 1) / m),
        ),
        Mistake(
            "one too many below",
            "Your bubble is a little too small: one slot too many below the line.",
            "m micro-batches through p stages: in how many slots is the last stage done, the first being number 1?",
            _choose(bubble=lambda p, m: (p - 1) / (m + p)),
        ),
        Mistake(
            "p idle slots",
            "Your bubble is too large: you count p idle slots.",
            "With one stage nothing is idle. What does your formula give there?",
            _choose(bubble=lambda p, m: p / (m + p - 1)),
        ),
        Mistake(
            "exactly is refused",
            "You refuse a bubble that is exactly the largest one allowed.",
            "At most: which comparison is that?",
            _choose(strictly=True),
        ),
        Mistake(
            "does not divide",
            "Your micro-batches are not equal: their number does not divide the batch.",
            "Try the divisors of the batch alone.",
            _choose(divides=False),
        ),
        Mistake(
            "memory forgotten",
            "You look at the bubble, and not at the memory.",
            "What does a stage hold at its peak: how many micro-batches, of how many examples, of how many bytes?",
            _choose(memory=False),
        ),
        Mistake(
            "everything in flight",
            "You count GPipe's memory for 1F1B too.",
            "1F1B holds fewer micro-batches than m. How many on which stage?",
            _choose(same_for_both="GPipe"),
        ),
        Mistake(
            "1F1B for both",
            "You count 1F1B's memory for GPipe too.",
            "When does GPipe's first backward start, and what is held until then?",
            _choose(same_for_both="1F1B"),
        ),
        Mistake(
            "one in flight",
            "You count one micro-batch per stage, as if nothing waited for its backward.",
            "A stage holds a micro-batch from its forward to its backward. How many others come in between?",
            _choose(held=lambda m, p, stage: 1, same_for_both="1F1B"),
        ),
        Mistake(
            "whole batch each",
            "You count a whole batch for each micro-batch in flight.",
            "How many examples are in a micro-batch?",
            _choose(whole_batch=True),
        ),
        Mistake(
            "first stage alone",
            "You look at the first stage alone. It holds most micro-batches, and not always most bytes.",
            "Every stage has its own count in flight and its own bytes for an example.",
            _choose(stages=slice(0, 1)),
        ),
        Mistake(
            "as many on every stage",
            "You count as many micro-batches on every stage as the first one holds.",
            "In 1F1B's drawing, what does the last stage hold?",
            _choose(held=lambda m, p, stage: min(m, p)),
        ),
        Mistake(
            "more than there are",
            "With fewer micro-batches than stages, you count more in flight than there are.",
            "A stage cannot hold more than m.",
            _choose(held=lambda m, p, stage: p - stage),
        ),
        Mistake(
            "the largest",
            "You take the largest number that fits, and small micro-batches keep a device badly busy.",
            "The smallest one was asked for.",
            _choose(best=max),
        ),
        Mistake(
            "no error",
            "Where nothing fits you return the batch, and the run fails later.",
            "After the last candidate: a ValueError.",
            _choose(error=False),
        ),
    ),
)


# q3: 1F1B


def _works(order):
    """["F0", ...] as the library's work."""
    return [{"F": pipeline.forward, "B": pipeline.backward}[one[0]](int(one[1:])) for one in order]


def _scheduled(answers, seed):
    """((stages, micro-batches), the learner's schedule) of each pipeline. Raises CourseError for one that cannot work."""
    for (p, m), orders in zip(probes.shapes(seed), answers["orders"], strict=True):
        if len(orders) != p:
            raise CourseError(f"there are orders of {len(orders)} stages, and the pipeline has {p}")
        yield (p, m), pipeline.Schedule("yours", m, tuple(map(_works, orders)))


def _legal(answers, seed):
    try:
        return bool(list(_scheduled(answers, seed)))
    except CourseError as refused:
        return str(refused)


def _in_time(answers, seed):
    if _legal(answers, seed) is not True:
        return "not drawn: the orders do not work"
    for (p, m), schedule in _scheduled(answers, seed):
        wanted, got = (p - 1) / (m + p - 1), schedule.timeline().bubble
        if got > wanted + 1e-9:
            return f"{m} micro-batches on {p} stages leave {got:.1%} idle, and {wanted:.1%} would do"
    return True


def _held_little(answers, seed):
    if _legal(answers, seed) is not True:
        return "not drawn: the orders do not work"
    for (p, m), schedule in _scheduled(answers, seed):
        for stage, held in enumerate(schedule.timeline().peak_in_flight):
            if held > (allowed := min(m, p - stage)):
                return f"with {m} micro-batches, stage {stage} of {p} holds {held}, and {allowed} would do"
    return True


def _order(fill=lambda stage, p: p - stage - 1, limit=True, latest=False, swapped=False, rest=True):
    """The solution, with one thing wrong: see the mistakes for which.

    fill  (stage, p) -> forwards before the turns
    """

    def order_of(stage, stages, micro_batches):
        m, first = micro_batches, max(fill(stage, stages), 0)
        first, waiting = (min(first, m) if limit else first), []
        order = [f"F{i}" for i in range(first)]
        waiting += range(first)
        for i in range(first, m):
            waiting.append(i)
            pair = [f"F{i}", f"B{waiting.pop() if latest else waiting.pop(0)}"]
            order += pair[::-1] if swapped else pair
        return order + [f"B{i}" for i in (waiting[::-1] if latest else waiting)] * rest

    return order_of


ONE_FORWARD_ONE_BACKWARD = Question(
    name="q3",
    title="Write 1F1B",
    asks_for=("order_of",),
    probe=probes.probe_orders,
    targets=(
        Target("the stages' orders work together: all work once, and no stages that wait for each other", _legal),
        Target("a bubble of (p-1)/(m+p-1), if a backward takes two forwards", _in_time),
        Target("stage s holds at most min(m, p-s) micro-batches", _held_little),
    ),
    mistakes=(
        Mistake(
            "GPipe",
            "All forwards come first, so every stage holds every micro-batch.",
            "The last stage can go back as soon as it has gone forward once. When can the one before it?",
            _order(fill=lambda stage, p: 10**6),
        ),
        Mistake(
            "one at a time",
            "Each micro-batch goes back before the next one goes forward, so there is one in the whole pipeline.",
            "While a stage waits for its first gradient, it can do more forwards. How many?",
            _order(fill=lambda stage, p: 0),
        ),
        Mistake(
            "one too few first",
            "The stages go forward once too little before their first turn, and wait for it in every turn.",
            "The last stage starts with a forward and a backward in turns. How many forwards does the one before need first?",
            _order(fill=lambda stage, p: p - stage - 2),
        ),
        Mistake(
            "one too many first",
            "The stages go forward once too often before their first turn, and hold one micro-batch more than they need.",
            "A turn starts with a forward, which counts too.",
            _order(fill=lambda stage, p: p - stage),
        ),
        Mistake(
            "all stages alike",
            "Every stage goes forward equally often before its first turn, and so the last ones hold too much.",
            "How long a stage waits for its first gradient depends on how many stages come after it.",
            _order(fill=lambda stage, p: p - 1),
        ),
        Mistake(
            "stages the wrong way round",
            "The last stage goes forward most before its first turn, and the first one least: they wait for each other.",
            "Which stage waits longest for its first gradient?",
            _order(fill=lambda stage, p: stage),
        ),
        Mistake(
            "backward first",
            "Your turns begin with the backward, and the last stage then goes back before it has gone forward.",
            "The name says the order of a turn.",
            _order(swapped=True),
        ),
        Mistake(
            "latest first",
            "A stage goes back with its latest micro-batch first, and the stage after it sends the oldest.",
            "In which order do the gradients arrive?",
            _order(latest=True),
        ),
        Mistake(
            "end forgotten",
            "The forwards are all there, and some backwards are missing at the end.",
            "After the last turn, as many micro-batches are in flight as went forward before the first one.",
            _order(rest=False),
        ),
        Mistake(
            "more than there are",
            "With few micro-batches, a stage goes forward with some that do not exist.",
            "There may be fewer micro-batches than stages.",
            _order(limit=False),
        ),
    ),
)


# q4: balance


def _every_cut(layers, stages, empty=False):
    """All ways to cut a row of layers into so many stages, as lists of lists of layers."""
    choose = itertools.combinations_with_replacement if empty else itertools.combinations
    between = range(layers + 1) if empty else range(1, layers)
    for cuts in choose(between, stages - 1):
        yield [list(range(*ends)) for ends in itertools.pairwise([0, *cuts, layers])]


def _sums(parts, costs):
    return [sum(costs[layer] for layer in part) for part in parts]


def _dearest(parts, seconds, sizes):
    return max(_sums(parts, seconds))


def _best_cut(by=_dearest, memory=True, at_once=False, empty=False):
    """The solution, with one thing wrong: see the mistakes for which.

    by  (cut, seconds, bytes) -> what is to be small
    """

    def cut_layers(seconds, weight_bytes, stages, memory_bytes):
        cuts = list(_every_cut(len(seconds), stages, empty))
        fitting = [parts for parts in cuts if not memory or max(_sums(parts, weight_bytes)) <= memory_bytes]
        if at_once:  # the best of all cuts, and only then a look at the memory
            fitting = [
                parts for parts in [min(cuts, key=lambda parts: by(parts, seconds, weight_bytes))] if parts in fitting
            ]
        if not fitting:
            raise ValueError("no cut fits")
        return min(fitting, key=lambda parts: by(parts, seconds, weight_bytes))

    return cut_layers


def _equal_numbers(seconds, weight_bytes, stages, memory_bytes):
    return [part.tolist() for part in np.array_split(np.arange(len(seconds)), stages)]


def _greedy(seconds, weight_bytes, stages, memory_bytes):
    """A stage takes layers until it has its share of the seconds."""
    share, parts = sum(seconds) / stages, [[]]
    for layer, cost in enumerate(seconds):
        left = len(seconds) - layer
        full = sum(seconds[one] for one in parts[-1]) + cost > share
        if parts[-1] and len(parts) < stages and (full or left == stages - len(parts)):
            parts.append([])
        parts[-1].append(layer)
    return parts


def _dealt_out(seconds, weight_bytes, stages, memory_bytes):
    """The dearest layer that is left goes to the stage that has least."""
    parts = [[] for _ in range(stages)]
    for layer in sorted(range(len(seconds)), key=lambda one: -seconds[one]):
        min(parts, key=lambda part: sum(seconds[one] for one in part)).append(layer)
    return [sorted(part) for part in parts]


def _case_name(case):
    return f"of {len(case['seconds'])} layers on {case['stages']} stages"


def _each_cut(detail):
    """A target over the rows: detail(case, parts, the best cut) says what is wrong, or nothing."""

    def holds(answers, seed):
        for case, parts in zip(probes.layer_rows(seed), answers["cuts"], strict=True):
            wanted = probes.ask_for_one(_best_cut(), case)
            if wrong := detail(case, parts, wanted):
                return f"{_case_name(case)} {wrong}"
        return True

    return holds


def _not_in_order(case, parts, wanted):
    if parts == probes.NO_ANSWER:
        return ""
    if [layer for part in parts for layer in part] != list(range(len(case["seconds"]))):
        return f"yours gives {parts}"
    return (
        "" if len(parts) == case["stages"] and all(parts) else f"yours has {sum(map(bool, parts))} with a layer in it"
    )


def _too_heavy(case, parts, wanted):
    if parts == probes.NO_ANSWER:
        return ""
    most = max(_sums(parts, case["weight_bytes"]))
    return f"one has {most:,} B, and {case['memory_bytes']:,} B are allowed" if most > case["memory_bytes"] else ""


def _cut_or_error(case, parts, wanted):
    if (parts == probes.NO_ANSWER) == (wanted == probes.NO_ANSWER):
        return ""
    return "yours raises ValueError" if parts == probes.NO_ANSWER else "yours is a cut"


def _not_the_best(case, parts, wanted):
    if probes.NO_ANSWER in (parts, wanted):
        return ""
    got, best = (max(_sums(cut, case["seconds"])) for cut in (parts, wanted))
    return f"your dearest takes {got / best:.1%} of what it could" if got > best * (1 + 1e-9) else ""


BALANCE = Question(
    name="q4",
    title="Balance, within a memory",
    asks_for=("cut_layers",),
    probe=probes.probe_balance,
    targets=(
        Target(
            "every stage has one layer or more, neighbours, in order, and every layer once", _each_cut(_not_in_order)
        ),
        Target("no stage has more bytes than its memory", _each_cut(_too_heavy)),
        Target("a ValueError where no cut fits, and only there", _each_cut(_cut_or_error)),
        Target("the dearest stage takes as few seconds as it can", _each_cut(_not_the_best)),
    ),
    mistakes=(
        Mistake(
            "equal numbers",
            "Every stage has as many layers as the others, whatever they cost.",
            "A pipeline is as fast as its slowest stage, and you have the seconds.",
            _equal_numbers,
        ),
        Mistake(
            "greedy",
            "You fill one stage after the other up to an equal share. What is left over all falls to the last one.",
            "Judge whole cuts, not one stage at a time: with ten layers you can try them all.",
            _greedy,
        ),
        Mistake(
            "dealt out",
            "You deal the layers out, and a stage then has layers that are no neighbours.",
            "Each stage hands on to the next one: a stage is one piece of the row.",
            _dealt_out,
        ),
        Mistake(
            "bytes, not seconds",
            "You balance the bytes. They only have to fit; it is the slowest stage that all wait for.",
            "What is to be small, and what is a limit?",
            _best_cut(by=lambda parts, seconds, sizes: max(_sums(parts, sizes))),
        ),
        Mistake(
            "memory forgotten",
            "Your stages are balanced, and some need more memory than there is.",
            "Leave out the cuts that do not fit, and take the best of the others.",
            _best_cut(memory=False),
        ),
        Mistake(
            "memory too late",
            "You look for the best cut and then whether it fits. A cut that is second best may.",
            "Which comes first: leaving out, or choosing?",
            _best_cut(at_once=True),
        ),
        Mistake(
            "smallest spread",
            "You bring dearest and cheapest stage close together. It is the dearest alone that counts.",
            "A cheap stage may be as cheap as it likes.",
            _best_cut(by=lambda parts, seconds, sizes: max(_sums(parts, seconds)) - min(_sums(parts, seconds))),
        ),
        Mistake(
            "empty stage",
            "A stage of yours has no layer.",
            "May two cuts be in the same place, or one at an end of the row?",
            _best_cut(empty=True),
        ),
    ),
)


# q5: one stage


def _stage_facts(seed):
    """(order, what arrives and leaves, the kernel's gradient of the whole batch's mean loss) of each of the probe's runs."""
    one, facts = probes.two_halves(seed), []
    stages = probes.messages(seed)
    for orders in probes.ORDERS:
        for name, order, stage in zip(("first", "second"), orders, stages):
            whole = probes.TanhStage(one[name])
            _, kept = whole.forward(np.concatenate(stage["F"]))
            upstream = np.concatenate(stage["B"]) / len(stage["B"])  # the batch's mean loss is the mean of theirs
            (gradient,), _ = whole.backward(kept, upstream)
            facts.append((order.split(), stage, gradient))
    return facts


def _each_run(detail):
    """A target over the probe's runs: detail(run, order, messages, gradient) says what is wrong, or nothing."""

    def holds(answers, seed):
        for number, (run, facts) in enumerate(zip(answers["runs"], _stage_facts(seed), strict=True)):
            if wrong := detail(run, *facts):
                return f"stage {number % 2}, {' '.join(facts[0])}: {wrong}"
        return True

    return holds


def _other_calls(run, order, stage, gradient):
    wanted = [f"{call} {work}" for work in order for call in ("receive", "send")]
    return "" if run["calls"] == wanted else f"yours calls {', '.join(run['calls'][:6])} ..."


def _sent_wrong(run, order, stage, gradient):
    for work in order:
        if work not in run["sent"]:
            return f"{work} sends nothing"
        off = _off(run["sent"][work], stage[f"{work[0]} out"][int(work[1:])])
        if not off <= FLOAT32:
            return f"{work} sends what is off by {100 * off:,.4g}%"
    return ""


def _gradient_wrong(run, order, stage, gradient):
    if len(run["gradients"]) != 1:
        return f"you return {len(run['gradients'])} gradients for 1 array of weights"
    off = _off(run["gradients"][0], gradient)
    return "" if off <= FLOAT32 else f"off by {100 * off:,.4g}%"


def _kept_too_long(run, order, stage, gradient):
    return f"{run['held']} are" if run["held"] > 1 else ""


def _run_stage(
    put=lambda held, i, kept: held.update({i: kept}),
    take=lambda held, i: held.pop(i),
    reorder=list,
    mean=True,
    scaled=False,
    add=True,
    back=True,
):
    """The solution, with one thing wrong: see the mistakes for which.

    put, take  (held, micro-batch, ...): how what a forward keeps is held, and found again
    """

    def run_stage(stage, order, receive, send):
        m, held, sums = len(order) // 2, {}, None
        for work in reorder(order):
            i = int(work[1:])
            if work[0] == "F":
                outputs, kept = stage.forward(receive(work))
                put(held, i, kept)
                del kept
                send(work, outputs)
                continue
            upstream = receive(work) / (m if scaled else 1)
            gradients, by_input = stage.backward(take(held, i), upstream)
            sums = [a + b for a, b in zip(sums, gradients)] if sums and add else gradients
            if back:
                send(work, by_input)
        return [gradient / (m if mean else 1) for gradient in sums]

    return run_stage


def _forwards_first(order):
    return sorted(order, key=lambda work: work[0] == "B")


ONE_STAGE = Question(
    name="q5",
    title="Run one stage",
    asks_for=("run_stage",),
    probe=probes.probe_stage,
    targets=(
        Target("each piece of work in the order given: received, computed, sent", _each_run(_other_calls)),
        Target("what is sent equals one device's, micro-batch by micro-batch, to 0.001%", _each_run(_sent_wrong)),
        Target("the gradients equal those of the whole batch's mean loss, to 0.001%", _each_run(_gradient_wrong)),
        Target("of the micro-batches that have gone backward, at most one is still held", _each_run(_kept_too_long)),
    ),
    mistakes=(
        Mistake(
            "sum, not mean",
            "You add the micro-batches' gradients up, so they are m times too large.",
            "Each is the gradient of a micro-batch's mean. What is the batch's mean, in terms of those?",
            _run_stage(mean=False),
        ),
        Mistake(
            "scaled on the way",
            "Your gradients are right, and what you send back is m times too small: the stage before divides as well.",
            "Where do you divide by m? What arrives, and what is sent, belongs to one micro-batch.",
            _run_stage(scaled=True, mean=False),
        ),
        Mistake(
            "divided twice",
            "You divide by m on the way and again at the end.",
            "What arrives, and what is sent, belongs to one micro-batch. Where does the batch come in?",
            _run_stage(scaled=True),
        ),
        Mistake(
            "latest activations",
            "Every backward uses what the latest forward has kept.",
            "Several micro-batches are in flight at once, and one name holds one of them.",
            _run_stage(put=lambda held, i, kept: held.update(latest=kept), take=lambda held, i: held["latest"]),
        ),
        Mistake(
            "latest first",
            "You take what was kept from the end of a list, so a backward meets the latest forward.",
            "B1 wants what F1 has kept.",
            _run_stage(take=lambda held, i: held.popitem()[1]),
        ),
        Mistake(
            "oldest first",
            "You take what was kept from the front of a list. That works in 1F1B, and not in every order.",
            "Backwards may overtake each other. How do you find the one with the right number?",
            _run_stage(take=lambda held, i: held.pop(next(iter(held)))),
        ),
        Mistake(
            "kept to the end",
            "What a forward has kept stays until the step is over, so that 1F1B needs GPipe's memory.",
            "Nobody needs it after its backward: who still has a name for it?",
            _run_stage(take=lambda held, i: held[i]),
        ),
        Mistake(
            "own order",
            "You do all forwards and then all backwards, whatever the order says.",
            "One loop, over `order`.",
            _run_stage(reorder=_forwards_first),
        ),
        Mistake(
            "last micro-batch alone",
            "You return the last micro-batch's gradients; the others are overwritten.",
            "What happens to the gradients that are there already?",
            _run_stage(add=False),
        ),
        Mistake(
            "nothing sent back",
            "The stage before waits for ever: you send activations, and no gradients.",
            "`stage.backward` gives two things. Who needs the second?",
            _run_stage(back=False),
        ),
    ),
)

_NO_ANSWER = forms.words(probes.NO_ANSWER)
_RUN = {
    "variables": [[forms.whole]],
    "gradients": [forms.either(forms.array, forms.nothing)],
    "products": [(forms.whole, forms.text, forms.whole)],
}
QUESTIONS = (
    forms.formed(PLACEMENT, {"runs": (_RUN, _RUN)}),
    forms.formed(MICRO_BATCHES, {"counts": [forms.either(forms.number, _NO_ANSWER)]}),
    forms.formed(ONE_FORWARD_ONE_BACKWARD, {"orders": [[[forms.text]]]}),
    forms.formed(BALANCE, {"cuts": [forms.either([[forms.size]], _NO_ANSWER)]}),
    forms.formed(
        ONE_STAGE,
        {"runs": [{"calls": [forms.text], "sent": {str: forms.array}, "gradients": [forms.array], "held": forms.size}]},
    ),
)
