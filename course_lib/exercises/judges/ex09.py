"""Exercise 09: a loss scale's window and its search, an overflow among replicas, what stays float32, a fair comparison.

Needs NumPy; the wrong answers of q3 and q4 need TensorFlow when they run.
"""

import numpy as np

from course_lib.exercises.judges import forms
from course_lib.exercises.probes import ex09 as probes
from course_lib.exercises.question import Mistake, Question, Target

FLOAT32 = 1e-5  # relative: one division in float32
SMALLEST_NORMAL, SMALLEST = 2.0**-14, 2.0**-24  # of float16
SCALES = 2.0 ** np.arange(41)


# q1: a loss scale's window


def _in_float16(numbers, scale=1.0):
    with np.errstate(over="ignore"):
        return (np.asarray(numbers) * scale).astype("float16")


def _lost(numbers, scale):
    """Which numbers float16 has as zero, although they are none."""
    return (_in_float16(numbers, scale) == 0) & (numbers != 0)


def _lost_share(gradients, scale):
    numbers = np.concatenate([np.ravel(gradient) for gradient in gradients])
    return _lost(numbers, scale).sum() / np.count_nonzero(numbers)


def _overflows(gradients, scale):
    return not all(np.isfinite(_in_float16(gradient, scale)).all() for gradient in gradients)


def _is_right(case, scale):
    gradients = case["gradients"]
    return not _overflows(gradients, scale) and _lost_share(gradients, scale) <= case["largest_lost_share"]


def _each_scale(judge):
    """A target: for every case with a scale of the learner's, judge(case, scale) is True or says why not."""

    def holds(answers, seed):
        said = (
            judge(case, scale)
            for case, scale in zip(probes.gradient_sets(seed), answers["scales"], strict=True)
            if scale != probes.NO_SCALE and (scale in SCALES or judge is _is_a_power)
        )
        return next((line for line in said if line is not True), True)

    return holds


def _named(scale):
    return f"2^{np.log2(scale):.0f}" if scale in SCALES else f"{scale:g}"


def _is_a_power(case, scale):
    return scale in SCALES or f"one of yours is {_named(scale)}"


def _nothing_overflows(case, scale):
    return not _overflows(case["gradients"], scale) or f"with a scale of {_named(scale)} a number becomes infinite"


def _little_is_lost(case, scale):
    share = _lost_share(case["gradients"], scale)
    return bool(share <= case["largest_lost_share"]) or (
        f"with a scale of {_named(scale)} {share:.1%} become zero, and {case['largest_lost_share']:.1%} may"
    )


def _no_smaller(case, scale):
    return scale == 1 or not _is_right(case, scale / 2) or f"where you take {_named(scale)}, half of it does"


def _refused_alone(answers, seed):
    for case, scale in zip(probes.gradient_sets(seed), answers["scales"], strict=True):
        exists = any(_is_right(case, one) for one in SCALES)
        if exists and scale == probes.NO_SCALE:
            return "you raise it where there is a right scale"
        if not exists and scale != probes.NO_SCALE:
            return f"you return {_named(scale)} where no scale is right"
    return True


def _all_at_the_upper_end(answers, seed):
    found = [
        pair for pair in zip(probes.gradient_sets(seed), answers["scales"], strict=True) if pair[1] != probes.NO_SCALE
    ]
    return all(
        not _overflows(case["gradients"], scale) and (scale >= SCALES[-1] or _overflows(case["gradients"], 2 * scale))
        for case, scale in found
    )


def _zero_share(numbers, scale):
    return np.mean(_in_float16(numbers, scale) == 0)


def _scale_with(lost=None, whole=True, most=lambda numbers: np.abs(numbers).max(), scales=SCALES, allowed=None):
    """The solution, with one thing wrong: see the mistakes for which."""
    lost = lost or (lambda numbers, scale: _lost_share([numbers], scale))

    def smallest_scale(gradients, largest_lost_share):
        allow = largest_lost_share if allowed is None else allowed
        flat = [np.ravel(gradient) for gradient in gradients]
        judged = [np.concatenate(flat)] if whole else flat
        for scale in scales:
            finite = np.isfinite(_in_float16(most(np.concatenate(flat)), scale))
            if finite and all(lost(numbers, scale) <= allow for numbers in judged):
                return scale
        raise ValueError("no scale")

    return smallest_scale


def _below(border):
    return lambda numbers, scale: np.mean(np.abs(numbers[numbers != 0]) * scale < border)


WINDOW = Question(
    name="q1",
    title="The window of a loss scale",
    asks_for=("smallest_scale",),
    probe=probes.probe_scale,
    targets=(
        Target("a power of two, from 1 to 2^40", _each_scale(_is_a_power)),
        Target("no number overflows", _each_scale(_nothing_overflows)),
        Target("at most the allowed share of the numbers becomes zero", _each_scale(_little_is_lost)),
        Target("no smaller power of two does", _each_scale(_no_smaller)),
        Target("a ValueError where no scale is right, and only there", _refused_alone),
    ),
    mistakes=(
        Mistake(
            "scaled too late",
            "You convert to float16 first and scale afterwards: what is zero by then stays zero.",
            "The order of the product and the conversion. The loss is scaled before there are gradients.",
            _scale_with(lost=lambda numbers, scale: _lost_share([numbers], 1.0)),
        ),
        Mistake(
            "zeros counted",
            "You count numbers as lost that are zero in float32 too.",
            "A dead unit's gradient is zero in any format, and no scale brings back what never was.",
            _scale_with(lost=_zero_share),
        ),
        Mistake(
            "array by array",
            "You ask every array for the share, and so reject scales that lose little of the whole gradient.",
            "The share is one for all arrays together, in which a bias counts by its few numbers.",
            _scale_with(whole=False),
        ),
        Mistake(
            "subnormals lost",
            "You count numbers as lost that float16 keeps with fewer digits.",
            "What has float16 below its smallest normal number? The lesson's table has both figures.",
            _scale_with(lost=_below(SMALLEST_NORMAL)),
        ),
        Mistake(
            "no rounding",
            "You count all below float16's smallest number as lost, and some of it is rounded up to that number.",
            "Convert and look: which numbers really become zero?",
            _scale_with(lost=_below(SMALLEST)),
        ),
        Mistake(
            "overflow ignored",
            "You find the scale that rescues the small numbers, and don't ask what it does to the large ones.",
            "The window has two ends. What does float16 have beyond 65,504?",
            _scale_with(most=lambda numbers: 0.0),
        ),
        Mistake(
            "sign forgotten",
            "You look at the largest number, and a negative one overflows.",
            "A gradient's numbers have either sign: minus infinity is an overflow too.",
            _scale_with(most=np.max),
        ),
        Mistake(
            "largest scale",
            "You return the upper end of the window, where the next larger gradient overflows.",
            "From which end do you try the powers of two?",
            _scale_with(scales=SCALES[::-1]),
            _all_at_the_upper_end,
        ),
        Mistake(
            "nothing may go",
            "You ask for a scale that loses nothing at all.",
            "The second argument says how much may be lost.",
            _scale_with(allowed=0.0),
        ),
    ),
)


# q2: a loss scale's state machine


def _has_overflow(case):
    return not all(np.isfinite(gradient).all() for gradient in case["gradients"])


def _grows(case):
    return not _has_overflow(case) and case["good_steps"] + 1 == case["growth_steps"]


def _state_is(chosen, wanted):
    """A target: in the chosen cases, scale and good steps are wanted(case)."""

    def holds(answers, seed):
        for case, got in zip(probes.transitions(seed), answers["updates"], strict=True):
            state = got["scale"], got["good_steps"]
            if chosen(case) and state != wanted(case):
                good_steps = case["good_steps"]
                good = f"good step {good_steps + 1} of {case['growth_steps']}"
                after = "an overflow" if _has_overflow(case) else good
                before = f"scale {case['scale']:g} and {good_steps} good steps"
                return f"after {after}, {before} become {state[0]:g} and {state[1]}"
        return True

    return holds


def _within_bounds(case):
    return 1 < case["scale"] < case["largest_scale"]


def _skips(answers, seed):
    for case, got in zip(probes.transitions(seed), answers["updates"], strict=True):
        if _has_overflow(case) and got["unscaled"] is not None:
            return "you return gradients, and not None, for a step that has infinity or NaN in it"
        if not _has_overflow(case) and got["unscaled"] is None:
            return "you skip a step whose numbers are all finite"
    return True


def _unscales(answers, seed):
    for case, got in zip(probes.transitions(seed), answers["updates"], strict=True):
        if _has_overflow(case) or got["unscaled"] is None:
            continue
        wanted = [gradient.astype("float32") / case["scale"] for gradient in case["gradients"]]
        if [array.shape for array in got["unscaled"]] != [array.shape for array in wanted]:
            return "your arrays have other shapes than those that came"
        pairs = zip(got["unscaled"], wanted, strict=True)
        off = np.max([np.max(abs(mine - right) / abs(right)) for mine, right in pairs])
        if not off <= FLOAT32:
            return f"with a scale of {case['scale']:g}, a number is off by {off:.1%}"
        if "float16" in got["dtypes"]:
            return "yours are still float16"
    return True


def _all_finite(gradients):
    return all(np.isfinite(gradient).all() for gradient in gradients)


def _sums_are_finite(gradients):
    return all(np.isfinite(gradient.sum()) for gradient in gradients)


def _divided(gradients, scale, new_scale):
    return [gradient.astype("float32") / np.float32(scale) for gradient in gradients]


def _update(
    finite=_all_finite,
    unscale=_divided,
    skips=True,
    floor=1.0,
    cap=True,
    grow_at=0,
    halve=0.5,
    forget=True,
    restart=True,
):
    """The solution, with one thing wrong: see the mistakes for which."""

    def update(scale, good_steps, gradients, growth_steps, largest_scale):
        if not finite(gradients):
            kept = None if skips else _divided([np.nan_to_num(g, posinf=0, neginf=0) for g in gradients], scale, scale)
            return max(scale * halve, floor), 0 if forget else good_steps, kept
        new_scale, count = scale, good_steps + 1
        if count >= growth_steps + grow_at:
            new_scale = min(2 * scale, largest_scale) if cap else 2 * scale
            count = 0 if restart else count
        return new_scale, count, unscale(gradients, scale, new_scale)

    return update


def _still_scaled(answers, seed):
    """Every step that is not skipped comes back as it was."""
    pairs = zip(probes.transitions(seed), answers["updates"], strict=True)
    finite = [(case["gradients"], got["unscaled"]) for case, got in pairs if not _has_overflow(case)]
    return all(all(map(np.array_equal, given, returned)) for given, returned in finite)


def _vanished_again(answers, seed):
    """Gradients come back in float16, or with numbers that float16 made zero."""
    pairs = zip(probes.transitions(seed), answers["updates"], strict=True)
    finite = [got for case, got in pairs if not _has_overflow(case)]
    return any("float16" in got["dtypes"] or any((array == 0).any() for array in got["unscaled"]) for got in finite)


def _state_mistake(name, what, where, **changes):
    """A mistake in scale or count, recognised by those alone."""
    wrong = _update(**changes)

    def recognise(answers, seed):
        expected = probes.probe_updates({"update": wrong}, seed)["updates"]
        states = ([(got["scale"], got["good_steps"]) for got in updates] for updates in (answers["updates"], expected))
        return len({tuple(state) for state in states}) == 1

    return Mistake(name, what, where, wrong, recognise)


SEARCH = Question(
    name="q2",
    title="A loss scale that searches",
    asks_for=("update",),
    probe=probes.probe_updates,
    targets=(
        Target("a step with infinity or NaN anywhere is skipped, and no other", _skips),
        Target("unscaled gradients are float32 and right to 0.001%", _unscales),
        Target(
            "an overflow halves the scale, never below 1, and the count begins at 0",
            _state_is(_has_overflow, lambda case: (max(case["scale"] / 2, 1.0), 0)),
        ),
        Target(
            "after growth_steps good steps the scale doubles, and the count begins at 0",
            _state_is(lambda case: _grows(case) and _within_bounds(case), lambda case: (2 * case["scale"], 0)),
        ),
        Target(
            "the scale never passes largest_scale",
            _state_is(lambda case: _grows(case) and not _within_bounds(case), lambda case: (case["scale"], 0)),
        ),
        Target(
            "any other good step keeps the scale and counts",
            _state_is(
                lambda case: not _has_overflow(case) and not _grows(case),
                lambda case: (case["scale"], case["good_steps"] + 1),
            ),
        ),
    ),
    mistakes=(
        Mistake(
            "not divided",
            "Your gradients are still multiplied by the scale.",
            "What the chain rule has put into every gradient must go out again before the update.",
            _update(unscale=lambda gradients, *_: [gradient.astype("float32") for gradient in gradients]),
            _still_scaled,
        ),
        Mistake(
            "divided in float16",
            "You divide in float16, where the small numbers that the scale has rescued vanish again.",
            "The dtype of the quotient: convert before you divide.",
            _update(unscale=lambda gradients, scale, _: [gradient / np.float16(scale) for gradient in gradients]),
            _vanished_again,
        ),
        Mistake(
            "new scale",
            "You divide by the scale that you have just doubled, so that every growth_steps-th step is half as long.",
            "The loss was multiplied by the scale that came in.",
            _update(unscale=lambda gradients, _, new_scale: _divided(gradients, new_scale, new_scale)),
        ),
        Mistake(
            "NaN passes",
            "You look for infinity and let NaN through.",
            "Infinity minus infinity is NaN. Which NumPy function is True for neither?",
            _update(finite=lambda gradients: not any(np.isinf(gradient).any() for gradient in gradients)),
        ),
        Mistake(
            "first array alone",
            "You look at the first array, and the overflow was in another.",
            "One bad number anywhere spoils the step.",
            _update(finite=lambda gradients: _all_finite(gradients[:1])),
        ),
        Mistake(
            "sums tested",
            "You test sums of gradients, which overflow in float16 although all addends are finite.",
            "Test the numbers themselves.",
            _update(finite=_sums_are_finite),
        ),
        Mistake(
            "bad numbers zeroed",
            "You set the bad numbers to zero and go on, so that the update leaves a part of the gradient out.",
            "One number is infinite because the scale is too large for all: what does Keras do with such a step?",
            _update(skips=False),
        ),
        _state_mistake(
            "not halved",
            "You skip, and the scale stays as it is, so that the next step overflows as well.",
            "What should change before the next attempt?",
            halve=1.0,
        ),
        _state_mistake(
            "overflow forgotten",
            "The count goes on over an overflow, so that the scale grows again too early.",
            "It counts good steps in a row.",
            forget=False,
        ),
        _state_mistake(
            "count goes on",
            "The count goes on when the scale doubles.",
            "How many good steps should pass until the next doubling?",
            restart=False,
        ),
        _state_mistake(
            "one step late",
            "You double one good step too late.",
            "Does the step that you are counting belong to the growth_steps?",
            grow_at=1,
        ),
        _state_mistake(
            "no floor",
            "Your scale falls below 1, where it makes gradients smaller instead of larger.",
            "The smallest scale in the text.",
            floor=0.0,
        ),
        _state_mistake("no cap", "Your scale grows beyond largest_scale.", "The last argument.", cap=False),
    ),
)


# q3: an overflow on some replicas

ROUNDED = 0.02  # relative: products of float16 numbers, 11 bits each, in two updates and their momentum


def _change(run, weights, divisor, shards):
    """By how much one step without momentum changes the weights, in NumPy."""
    total = sum(len(x) for x, _ in shards)
    parts = [2 * x.T @ (x @ weights - y) / divisor(len(x), total, len(shards)) for x, y in shards]
    return -run["rate"] * sum(parts)


def _all_rows(local, total, replicas):
    return total


def _run_of(answers, seed):
    """The run that was asked. Raises ValueError when a step tells of more or fewer replicas than the first."""
    replicas = len(answers["steps"][0]["weights"])
    told = {len(step[what]) for step in answers["steps"] for what in ("weights", "scales", "returned")}
    if told != {replicas}:
        raise ValueError(f"the steps tell of {' and '.join(map(str, sorted(told)))} replicas")
    return probes.overflowing_run(seed, replicas)


def _one_device(run):
    """The weights after all steps, with those skipped that have an overflow."""
    weights, velocity = run["weights"].astype("float64"), 0.0
    for shards, bad in zip(run["steps"], run["bad"]):
        if not bad:
            velocity = probes.MOMENTUM * velocity + _change(run, weights, _all_rows, shards)
            weights = weights + velocity
    return weights


def _skipped_everywhere(answers, seed):
    before = None
    for step, bad in zip(answers["steps"], _run_of(answers, seed)["bad"], strict=True):
        if bad and not all(np.isfinite(copy).all() for copy in step["weights"]):
            return "a weight is no longer finite"
        if bad and not all(map(np.array_equal, step["weights"], before["weights"])):
            return "weights have changed"
        if bad and step["iterations"] != before["iterations"]:
            return f"iterations counts it: {before['iterations']} and then {step['iterations']}"
        before = step
    return True


def _scale_halved(answers, seed):
    run = _run_of(answers, seed)
    for step, halvings in zip(answers["steps"], np.cumsum(np.array(run["bad"]) > 0), strict=True):
        wanted = run["scale"] / 2**halvings
        if any(scale != wanted for scale in step["scales"]):
            scales = ", ".join(f"{scale:g}" for scale in step["scales"])
            return f"after {halvings} of them the replicas have the scales {scales}"
    return True


def _as_one_device(answers, seed):
    run = _run_of(answers, seed)
    wanted, length = _one_device(run), np.linalg.norm(_one_device(run) - run["weights"])
    if any(copy.shape != wanted.shape for copy in answers["steps"][-1]["weights"]):
        return "yours have another shape"
    off = np.max([np.linalg.norm(copy - wanted) / length for copy in answers["steps"][-1]["weights"]])
    return bool(off <= ROUNDED) or f"off by {off:.1%} of the way"


def _overflows_counted(answers, seed):
    for step, bad in zip(answers["steps"], _run_of(answers, seed)["bad"], strict=True):
        if any(count != bad for count in step["returned"]):
            counts = ", ".join(f"{count:g}" for count in step["returned"])
            return f"the replicas return {counts} where {bad} of them overflowed"
    return True


def _first_change_is(wanted):
    """Recognise what the first step, without an overflow, does to the weights: wanted(run) -> the change."""

    def recognise(answers, seed):
        run = _run_of(answers, seed)
        got, change = answers["steps"][0]["weights"][0] - run["weights"], wanted(run)
        return np.linalg.norm(got - change) < ROUNDED * np.linalg.norm(change)

    return recognise


def _times(factor, divisor=_all_rows):
    """Recognise a first step that is as long as with this divisor, times factor(run)."""

    def wanted(run):
        return factor(run) * _change(run, run["weights"], divisor, run["steps"][0])

    return _first_change_is(wanted)


def _poisoned(answers):
    return not np.isfinite(answers["steps"][1]["weights"]).all()


def _counts(answers, step):
    return answers["steps"][step]["returned"]


def _went_on(answers):
    """The second step, where a replica overflowed, was counted, and the weights are finite."""
    return answers["steps"][1]["iterations"] == 2 and not _poisoned(answers)


def _moved_by_momentum_alone(answers, seed):
    run = _run_of(answers, seed)
    first, second = (answers["steps"][number]["weights"][0] for number in (0, 1))
    coasted = probes.MOMENTUM * (first - run["weights"])
    return _went_on(answers) and np.allclose(second - first, coasted, rtol=1e-3, atol=1e-6)


def _skipped_right(answers, seed):
    return all(target(answers, seed) is True for target in (_skipped_everywhere, _scale_halved, _as_one_device))


def _branches(answers, seed):
    return "`merge_call` called while defining" in answers.get("stopped", {}).get("error", "")


def _outside_its_context(answers, seed):
    return "cross-replica context" in answers.get("stopped", {}).get("error", "")


def _ask_context():
    import tensorflow as tf

    return tf.distribute.get_replica_context()


def _ask_strategy():
    import tensorflow as tf

    return tf.distribute.get_strategy()


def _spoiled(gradients, count, optimizer):
    """NaN on every replica as soon as one has overflowed."""
    import tensorflow as tf

    return [tf.where(count > 0, np.nan, gradient) for gradient in gradients]


def _zeroed(gradients, count, optimizer):
    import tensorflow as tf

    return [tf.where(tf.math.is_finite(gradient), gradient, 0.0) for gradient in gradients]


def _zeroed_together(gradients, count, optimizer):
    import tensorflow as tf

    return [tf.where(count > 0, 0.0, gradient) for gradient in gradients]


def _summed(gradients, count, optimizer):
    return _ask_context().all_reduce("SUM", gradients)


def _count(bad):
    return _ask_context().all_reduce("SUM", bad)


def _replica_step(
    hand_over=_spoiled, divisor=_all_rows, scales=True, count=_count, returned=None, branch=False, bad_loss=False
):
    """The solution, with one thing wrong: see the mistakes for which."""

    def replica_step(model, optimizer, x, y, global_batch):
        import tensorflow as tf

        sizes = tf.cast(tf.shape(x)[0], tf.float32), global_batch, float(_ask_context().num_replicas_in_sync)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x, training=True) - y)) / divisor(*sizes)
            scaled = optimizer.scale_loss(loss) if scales else loss
        gradients = tape.gradient(scaled, model.trainable_variables)
        finite = tf.math.is_finite(loss) if bad_loss else optimizer.check_finite(gradients)
        bad = 1.0 - tf.cast(finite, tf.float32)
        overflowed = count(bad)
        pairs = list(zip(hand_over(gradients, overflowed, optimizer), model.trainable_variables))
        if branch:
            tf.cond(overflowed > 0, lambda: None, lambda: optimizer.apply_gradients(pairs))
        else:
            optimizer.apply_gradients(pairs)
        return returned(bad) if returned else overflowed

    return replica_step


OVERFLOW = Question(
    name="q3",
    title="One replica overflows, all skip",
    asks_for=("replica_step",),
    probe=probes.probe_replica_step,
    targets=(
        Target("an overflow anywhere changes no weight and counts as no update, on any replica", _skipped_everywhere),
        Target("it halves every replica's scale once", _scale_halved),
        Target("the other steps end where one device in float32 does, to 2% of the way", _as_one_device),
        Target("every replica returns the number of replicas that overflowed", _overflows_counted),
    ),
    mistakes=(
        Mistake(
            "a branch",
            "You branch around `apply_gradients`, which TensorFlow refuses: it talks to the other replicas.",
            "Let every replica call it, and see to it that the optimizer itself skips.",
            _replica_step(branch=True),
            _branches,
        ),
        Mistake(
            "strategy inside the step",
            "You call a strategy's own method inside the step, where only one replica is in sight.",
            "Inside `strategy.run` ask `tf.distribute.get_replica_context()`.",
            _replica_step(count=lambda bad: _ask_strategy().reduce("SUM", bad, axis=None)),
            _outside_its_context,
        ),
        Mistake(
            "loss asked",
            "You ask whether the loss is finite, and here only the gradients overflow.",
            "The scale multiplies what flows backward. `optimizer.check_finite` takes gradients.",
            _replica_step(bad_loss=True),
            lambda answers, seed: _poisoned(answers) and set(_counts(answers, 1)) == {0.0},
        ),
        Mistake(
            "first replica asked",
            "The optimizer asks the first replica, whose gradients were finite, and adds up infinity.",
            "You know everywhere how many are bad. What could you hand over so that any replica gives the same answer?",
            _replica_step(hand_over=lambda gradients, count, optimizer: gradients),
            lambda answers, seed: _poisoned(answers),
        ),
        Mistake(
            "not scaled",
            "Your step is as many times too short as the scale is large.",
            "The optimizer divides by the scale itself, once. Did you differentiate `optimizer.scale_loss(loss)`?",
            _replica_step(scales=False),
            _times(lambda run: 1 / run["scale"]),
        ),
        Mistake(
            "local mean",
            "You divide by the replica's own rows, and the replicas' means are added up.",
            "Which divisor makes the sum over all replicas a mean over the global batch?",
            _replica_step(divisor=lambda local, total, replicas: local),
            _times(lambda run: 1, lambda local, total, replicas: local),
        ),
        Mistake(
            "summed twice",
            "Your step is N times too long: you sum the gradients over the replicas, and the optimizer does it again.",
            "What does `apply_gradients` do with the gradients of different replicas?",
            _replica_step(hand_over=_summed),
            _times(lambda run: len(run["steps"][0])),
        ),
        Mistake(
            "divided by the replicas",
            "Your step is N times too short: the gradients are summed over the replicas, not averaged.",
            "The global batch is the only divisor that you need.",
            _replica_step(divisor=lambda local, total, replicas: total * replicas),
            _times(lambda run: 1 / len(run["steps"][0])),
        ),
        Mistake(
            "zeros together",
            "All go on with gradients of zero: the update is counted, momentum moves the weights, and the scale stays.",
            "A skipped step is no step. What must the optimizer see to skip?",
            _replica_step(hand_over=_zeroed_together),
            _moved_by_momentum_alone,
        ),
        Mistake(
            "bad ones zeroed",
            "The replica that overflowed adds zeros, and the update goes on without its rows.",
            "A step in which a replica overflows is skipped as a whole, and the scale halves.",
            _replica_step(hand_over=_zeroed),
            lambda answers, seed: _went_on(answers),
        ),
        Mistake(
            "share returned",
            "You return the share of bad replicas and not their number.",
            "SUM or MEAN?",
            _replica_step(count=lambda bad: _ask_context().all_reduce("MEAN", bad)),
            lambda answers, seed: _skipped_right(answers, seed) and all(0 < one < 1 for one in _counts(answers, 1)),
        ),
        Mistake(
            "own flag returned",
            "Each replica returns whether it overflowed itself.",
            "Return what came out of the all-reduce.",
            _replica_step(returned=lambda bad: bad),
            lambda answers, seed: _skipped_right(answers, seed) and len(set(_counts(answers, 1))) == 2,
        ),
    ),
)


# q4: dtypes by layer

HIDDEN = ("hidden1", "hidden2")
LAYERS = ("rescale", *HIDDEN, "norm", "logits")
SHARE = 0.9  # of the multiplications
CLOSE = {"mixed_float16": 0.02, "mixed_bfloat16": 0.1}  # two layers' roundings to 11 and to 8 bits


def _computes(built, layer):
    if layer not in built["layers"]:
        raise KeyError(f"there is no layer called {layer}")
    return built["layers"][layer][0]


def _short(policy):
    return policy.removeprefix("mixed_")


def _both(judge):
    """A target: judge(policy, built, seed) is True for both policies, or says why not."""

    def holds(answers, seed):
        said = ((policy, judge(policy, answers[policy], seed)) for policy in probes.POLICIES)
        return next((f"with {policy}: {line}" for policy, line in said if line is not True), True)

    return holds


def _mostly_short(policy, built, seed):
    sizes = probes.counting_model(seed)["sizes"]
    features, width, classes = (sizes[name] for name in ("features", "width", "classes"))
    products = {"hidden1": features * width, "hidden2": width * width, "logits": width * classes}
    short = sum(count for layer, count in products.items() if _computes(built, layer) == _short(policy))
    share = short / sum(products.values())
    return share >= SHARE or f"yours does {share:.0%} of them in {_short(policy)}"


def _variables_float32(policy, built, seed):
    other = [name for name, (_, variables) in built["layers"].items() if variables not in ("float32", "-")]
    return not other or f"those of {other[0]} are {built['layers'][other[0]][1]}"


def _logits_float32(policy, built, seed):
    if built["logits_dtype"] != "float32":
        return f"they arrive in {built['logits_dtype']}"
    return _computes(built, "logits") == "float32" or f"the layer computes in {_computes(built, 'logits')}"


def _reference_logits(seed):
    wanted = probes.counting_model(seed)
    kernel1, bias1, kernel2, bias2, kernel3, bias3 = (array.astype("float64") for array in wanted["weights"])
    x = wanted["counts"] / wanted["sizes"]["largest_count"]
    x = np.maximum(np.maximum(x @ kernel1 + bias1, 0) @ kernel2 + bias2, 0)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True)) @ kernel3 + bias3


def _near_float32(policy, built, seed):
    wanted = _reference_logits(seed)
    if not np.isfinite(built["logits"]).all():
        return "yours are not finite"
    if built["logits"].shape != wanted.shape:
        return f"yours are {built['logits'].shape}, for {wanted.shape} examples and classes"
    off = np.linalg.norm(built["logits"] - wanted) / np.linalg.norm(wanted)
    return bool(off <= CLOSE[policy]) or f"yours are off by {off:.0%}"


def _policy_kept(policy, built, seed):
    return built["global_policy_kept"] or "your function leaves another one behind"


def _shorts_are(*layers):
    """Recognise by which layers compute in the short dtype, under both policies."""

    def recognise(answers, seed):
        return all(
            {name for name in LAYERS if _computes(answers[policy], name) == _short(policy)} == set(layers)
            for policy in probes.POLICIES
        )

    return recognise


def _mixed_model(dtype_of, cast=False, global_policy=None):
    """A builder whose layers have the dtypes that dtype_of(name, policy) gives."""

    def mixed_model(policy, features, width, classes, largest_count):
        import keras
        from keras import layers

        if global_policy:
            keras.config.set_dtype_policy(global_policy(policy))

        def dense(units, name, activation=None):
            return layers.Dense(units, activation, name=name, dtype=dtype_of(name, policy))

        def by_rms(x):
            return x / keras.ops.sqrt(keras.ops.mean(x * x, axis=-1, keepdims=True))

        counts = keras.Input((features,), name="counts")
        x = layers.Rescaling(1 / largest_count, name="rescale", dtype=dtype_of("rescale", policy))(counts)
        x = dense(width, "hidden2", "relu")(dense(width, "hidden1", "relu")(x))
        x = layers.Lambda(by_rms, name="norm", dtype=dtype_of("norm", policy), output_shape=lambda shape: shape)(x)
        x = dense(classes, "logits")(x)
        return keras.Model(counts, layers.Activation("linear", dtype="float32")(x) if cast else x)

    return mixed_model


def _in_short(*names):
    return lambda name, policy: policy if name in names else "float32"


DTYPES = Question(
    name="q4",
    title="What stays float32",
    asks_for=("mixed_model",),
    probe=probes.probe_mixed_model,
    targets=(
        Target("90% of the multiplications in 16 bits", _both(_mostly_short)),
        Target("all variables float32", _both(_variables_float32)),
        Target("logits computed in float32", _both(_logits_float32)),
        Target("for counts up to the largest, logits within 2% (10% in bfloat16) of float32's", _both(_near_float32)),
        Target("Keras' global policy as before", _both(_policy_kept)),
    ),
    mistakes=(
        Mistake(
            "short weights",
            "Your variables have 16 bits too, and small updates will vanish from them.",
            "The lesson has two policies with almost the same name.",
            _mixed_model(lambda name, policy: _short(policy) if name in HIDDEN else "float32"),
            lambda answers, seed: _both(_variables_float32)(answers, seed) is not True,
        ),
        Mistake(
            "nothing mixed",
            "Your layers all compute in float32.",
            "Where are most of the multiplications? `policy` is an argument of your function.",
            _mixed_model(_in_short()),
            _shorts_are(),
        ),
        Mistake(
            "everything short",
            "Every layer computes in 16 bits.",
            "Layer by layer: where are the numbers too large for float16, and where do their last digits matter?",
            _mixed_model(_in_short(*LAYERS)),
            _shorts_are(*LAYERS),
        ),
        Mistake(
            "cast afterwards",
            "You compute the logits in 16 bits and convert them afterwards, when the digits are gone.",
            "Set the dtype of the layer that multiplies.",
            _mixed_model(_in_short(*HIDDEN, "logits"), cast=True),
            lambda answers, seed: (
                _shorts_are(*HIDDEN, "logits")(answers, seed)
                and {answers[policy]["logits_dtype"] for policy in probes.POLICIES} == {"float32"}
            ),
        ),
        Mistake(
            "short logits",
            "Your logits are computed in 16 bits.",
            "What does the last layer hand to the loss, and how many digits does an exponential need?",
            _mixed_model(_in_short(*HIDDEN, "logits")),
            _shorts_are(*HIDDEN, "logits"),
        ),
        Mistake(
            "counts cast",
            "The first layer casts the counts to float16 before it divides, and beyond 65,504 they are infinite.",
            "A layer casts its inputs to its own compute dtype first. Which layer meets raw counts?",
            _mixed_model(_in_short("rescale", *HIDDEN)),
            _shorts_are("rescale", *HIDDEN),
        ),
        Mistake(
            "short squares",
            "The mean of squares overflows in float16: from 256 on, a square passes 65,504.",
            "Keras' own normalisations convert by themselves; a function of your own does not.",
            _mixed_model(_in_short(*HIDDEN, "norm")),
            _shorts_are(*HIDDEN, "norm"),
        ),
        Mistake(
            "half the products",
            "One of the two large layers is still in float32.",
            "Count the multiplications of each layer: inputs times units.",
            _mixed_model(_in_short("hidden2")),
            lambda answers, seed: _shorts_are("hidden1")(answers, seed) or _shorts_are("hidden2")(answers, seed),
        ),
        Mistake(
            "policy left behind",
            "Your function changes Keras' global policy, and whatever is built next gets it too.",
            "Say it layer by layer, or put the old policy back.",
            _mixed_model(_in_short(*HIDDEN), global_policy=lambda policy: policy),
            lambda answers, seed: _both(_policy_kept)(answers, seed) is not True,
        ),
    ),
)


# q5: a fair comparison

TIME = 0.04  # relative: the probe's machine gets 1% slower from one step to the next


def _same_updates(answers, seed):
    arguments = probes.comparison(seed)["arguments"]
    wanted = arguments["warmup"] + arguments["repeats"]
    for policy, _, updates, _ in answers["asked"]:
        if updates != wanted:
            return f"you asked a {policy} trial after {updates} updates, where {wanted} make warm-up and repeats"
    return True


def _same_seeds(answers, seed):
    arguments = probes.comparison(seed)["arguments"]
    wanted = set(arguments["seeds"])
    for policy, trials in zip(_policies(seed), _seeds_asked(answers, seed), strict=True):
        if trials != wanted:
            return f"for {len(wanted)} seeds you asked {policy} trials of {len(trials & wanted)} of them for an error"
    return True


def _policies(seed):
    return probes.CONTROL, probes.comparison(seed)["arguments"]["mixed"]


def _right_differences(answers, seed):
    arguments = probes.comparison(seed)["arguments"]
    updates = arguments["warmup"] + arguments["repeats"]
    wanted = [probes.held_out_difference(seed, trial, updates) for trial in arguments["seeds"]]
    got = answers["differences"]
    if len(got) != len(wanted):
        return f"you return {len(got)} for {len(wanted)} seeds"
    off = np.abs(np.subtract(got, wanted)).max()
    return bool(off < 1e-6) or f"one of yours is off by {100 * off:.2g} percentage points"


def _right_ratio(answers, seed):
    off = answers["ratio"] / probes.comparison(seed)["ratio"]
    return abs(off - 1) < TIME or f"yours is {off:.3g} times as large"


def _right_verdicts(answers, seed):
    for case, said in zip(probes.verdicts(seed), answers["verdicts"], strict=True):
        if said != case["verdict"]:
            differences = ", ".join(f"{100 * difference:.2f}" for difference in case["differences"])
            tolerance = f"a tolerance of {100 * probes.TOLERANCE:g}"
            return f"for differences of {differences} points and {tolerance} you say {said!r}"
    return True


def _seconds(trial, clock):
    start = clock()
    trial.step()
    return clock() - start


def _in_turns(pair, clock, steps):
    return np.transpose([[_seconds(trial, clock) for trial in pair] for _ in range(steps)])


def _one_by_one(pair, clock, steps):
    return np.array([[_seconds(trial, clock) for _ in range(steps)] for trial in pair])


def _median_ratio(float32, mixed):
    return np.median(np.ravel(mixed) / np.ravel(float32))


def _compare(
    timed=_in_turns,
    summary=_median_ratio,
    skip=True,
    split=probes.HELD_OUT,
    seed_of=lambda seed: seed,
    extra=0,
    used=lambda seeds: seeds,
    reported=lambda pairs: [other - one for one, other in pairs],
):
    """The solution, with one thing wrong: see the mistakes for which."""

    def compare_precisions(new_trial, clock, mixed, seeds, warmup, repeats):
        times, errors = [], []
        for seed in used(seeds):
            pair = [new_trial(probes.CONTROL, seed), new_trial(mixed, seed_of(seed))]
            seconds = timed(pair, clock, warmup + repeats)
            times.append(seconds[:, warmup:] if skip else seconds)
            for _ in range(extra):
                pair[1].step()
            errors.append([trial.error(split) for trial in pair])
        float32, mixed = np.stack(times, axis=1)
        return summary(float32, mixed), reported(errors)

    return compare_precisions


def _verdict(margin=None, rule=None):
    """The verdict's solution, with another margin(differences) or another rule(mean, margin, tolerance)."""

    def verdict(differences, tolerance):
        mean = np.mean(differences)
        width = (margin or _two_errors)(np.asarray(differences))
        return (rule or _by_interval)(mean, width, tolerance)

    return verdict


def _two_errors(differences):
    return 2 * differences.std(ddof=1) / np.sqrt(len(differences))


def _by_interval(mean, margin, tolerance):
    if mean - margin > tolerance:
        return "worse"
    if mean + margin < -tolerance:
        return "better"
    return "no difference" if abs(mean) + margin <= tolerance else "undecided"


def _by_zero(mean, margin, tolerance):
    if abs(mean) <= margin:
        return "no difference"
    return "worse" if mean > 0 else "better"


def _without_undecided(mean, margin, tolerance):
    said = _by_interval(mean, margin, tolerance)
    return "no difference" if said == "undecided" else said


def _ratio_is_off(answers, seed):
    return _right_ratio(answers, seed) is not True


def _one_policy_first(answers, seed):
    return _ratio_is_off(answers, seed) and answers["most_in_a_row"] >= probes.comparison(seed)["arguments"]["repeats"]


def _trained_split(answers, seed):
    return {split for *_, split in answers["asked"]} == {"training"}


def _seeds_asked(answers, seed):
    return [{trial for other, trial, _, _ in answers["asked"] if other == policy} for policy in _policies(seed)]


def _updates_asked(answers, seed):
    return [{updates for other, _, updates, _ in answers["asked"] if other == policy} for policy in _policies(seed)]


def _measures(name, what, where, recognise=None, of="ratio", **changes):
    """A mistake of the measurement, recognised by its ratio, or by its differences, unless told how."""
    wrong = {"compare_precisions": _compare(**changes), "verdict": _verdict()}

    def by_value(answers, seed):
        got, expected = np.array(answers[of]), np.array(probes.probe_comparison(wrong, seed)[of])
        rtol = TIME / 2 if of == "ratio" else 0
        return got.shape == expected.shape and np.allclose(got, expected, rtol=rtol, atol=1e-6)

    return Mistake(name, what, where, wrong, recognise or by_value)


def _judges(name, what, where, **changes):
    """A mistake of the verdict, recognised by its verdicts."""
    wrong = {"compare_precisions": _compare(), "verdict": _verdict(**changes)}

    def recognise(answers, seed):
        said = [wrong["verdict"](case["differences"], probes.TOLERANCE) for case in probes.verdicts(seed)]
        return answers["verdicts"] == said

    return Mistake(name, what, where, wrong, recognise)


FAIR = Question(
    name="q5",
    title="A fair comparison",
    asks_for=("compare_precisions", "verdict"),
    probe=probes.probe_comparison,
    targets=(
        Target("both policies with every seed", _same_seeds),
        Target("asked for their error after warmup + repeats updates", _same_updates),
        Target("one difference per seed, mixed minus float32, on held-out examples", _right_differences),
        Target("the ratio of the times, to 4%, on a machine that gets slower", _right_ratio),
        Target("the verdict that the differences allow", _right_verdicts),
    ),
    mistakes=(
        _measures(
            "one after the other",
            "You time one precision after the other, and the machine is slower by then.",
            "In turns: one step of each in every round.",
            _one_policy_first,
            timed=_one_by_one,
        ),
        _measures(
            "warm-up counted",
            "Your times include the warm-up, and with it compiling.",
            "Which rounds of each trial count?",
            skip=False,
        ),
        _measures(
            "mean",
            "You take a mean, which a few disturbed steps pull away from the rest.",
            "The docstring asks for the value in the middle.",
            summary=lambda float32, mixed: np.mean(mixed / float32),
        ),
        _measures(
            "fastest",
            "You compare the fastest step of each, and one lucky step decides.",
            "Every round should have its say: one ratio per round.",
            summary=lambda float32, mixed: mixed.min() / float32.min(),
        ),
        _measures(
            "means divided",
            "You divide total time by total time, and a few disturbed steps decide.",
            "One ratio per round, and then the one in the middle.",
            summary=lambda float32, mixed: mixed.sum() / float32.sum(),
        ),
        _measures(
            "medians divided",
            "You take each precision's own median, and the two come from rounds at which the machine was not as fast.",
            "First divide within a round, then take the median.",
            summary=lambda float32, mixed: np.median(mixed) / np.median(float32),
        ),
        _measures(
            "ratio upside down",
            "Your ratio is float32's time over mixed precision's.",
            "Below 1 should mean that mixed precision is faster.",
            summary=lambda float32, mixed: _median_ratio(mixed, float32),
        ),
        _measures(
            "on training data",
            "You compare the errors on the examples that the models were trained on.",
            "The argument of `error`.",
            _trained_split,
            split="training",
        ),
        _measures(
            "other seeds",
            "The two precisions start from different weights, and the seeds differ more than the precisions.",
            "Both trials of a pair get the same seed.",
            lambda answers, seed: len(set(map(frozenset, _seeds_asked(answers, seed)))) == 2,
            seed_of=lambda seed: seed + 1,
        ),
        _measures(
            "one seed",
            "You compare with one seed, and its luck is in your difference.",
            "`seeds` has several: each gives a pair of trials.",
            lambda answers, seed: all(len(trials) == 1 for trials in _seeds_asked(answers, seed)),
            used=lambda seeds: seeds[:1],
        ),
        _measures(
            "best seed",
            "You compare the best run of each precision, as if you could choose the seed afterwards.",
            "Each seed has a difference of its own.",
            of="differences",
            reported=lambda pairs: [np.min(pairs, axis=0)[1] - np.min(pairs, axis=0)[0]],
        ),
        _measures(
            "difference upside down",
            "Your differences are float32's error minus mixed precision's.",
            "Above 0 should mean that mixed precision is worse.",
            of="differences",
            reported=lambda pairs: [one - other for one, other in pairs],
        ),
        _measures(
            "unequal updates",
            "Mixed precision got more updates than float32.",
            "The same number of updates for both, before you ask for errors.",
            lambda answers, seed: len(set(map(frozenset, _updates_asked(answers, seed)))) == 2,
            extra=5,
        ),
        _judges(
            "mean alone",
            "You judge by the mean difference alone, however much the seeds differ.",
            "How far could the mean be off? Two standard errors to each side.",
            margin=lambda differences: 0.0,
        ),
        _judges(
            "zero inside",
            "You say 'no difference' when the interval contains zero. A wide one does so because you know little.",
            '"No difference" is a claim too. Compare the interval\'s ends with the tolerance.',
            rule=_by_zero,
        ),
        _judges(
            "never undecided",
            'You say "no difference" where the interval reaches beyond the tolerance.',
            "What does it take to rule out a difference larger than the tolerance?",
            rule=_without_undecided,
        ),
        _judges(
            "standard deviation",
            "You use the standard deviation of the differences, which doesn't get smaller with more seeds.",
            "The standard error of a mean of n numbers has a square root of n in it.",
            margin=lambda differences: 2 * differences.std(ddof=1),
        ),
        _judges(
            "one standard error",
            "Your interval is half as wide as asked.",
            "Two standard errors to each side.",
            margin=lambda differences: _two_errors(differences) / 2,
        ),
        _judges(
            "n, not n - 1",
            "Your standard deviation divides by n, and is too small for a few seeds.",
            "`ddof` of NumPy's function.",
            margin=lambda differences: 2 * differences.std() / np.sqrt(len(differences)),
        ),
    ),
)


_STEP = {
    "weights": forms.each_replica(forms.any_array),
    "scales": [forms.any_number],
    "iterations": forms.size,
    "returned": [forms.any_number],
}
_BUILT = {
    "layers": {str: (forms.text, forms.text)},
    "global_policy_kept": forms.flag,
    "logits_dtype": forms.text,
    "logits": forms.any_array,
}
QUESTIONS = (
    forms.formed(WINDOW, {"scales": [forms.either(forms.any_number, forms.words(probes.NO_SCALE))]}),
    forms.formed(
        SEARCH,
        {
            "updates": [
                {
                    "scale": forms.any_number,
                    "good_steps": forms.whole,
                    "unscaled": forms.either([forms.any_array], forms.nothing),
                    "dtypes": [forms.text],
                }
            ]
        },
    ),
    forms.formed(OVERFLOW, {"steps": [_STEP]}),
    forms.formed(DTYPES, dict.fromkeys(probes.POLICIES, _BUILT)),
    forms.formed(
        FAIR,
        {
            "ratio": forms.any_number,
            "differences": [forms.number],
            "asked": [(forms.text, forms.whole, forms.size, forms.text)],
            "most_in_a_row": forms.size,
            "verdicts": [forms.text],
        },
    ),
)
