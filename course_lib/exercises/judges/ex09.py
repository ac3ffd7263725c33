"""Exercise 09: a loss scale's window, its search, what stays float32, a fair comparison; q3 is in ex09_overflow.

Needs NumPy; mistakes that a check runs need TensorFlow.
"""

import math

import numpy as np

from course_lib.exercises.judge import same
from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.ex09_overflow import FLOAT32, OVERFLOW
from course_lib.exercises.judges.numbers import off
from course_lib.exercises.probes import ex09 as probes
from course_lib.exercises.probes import ex09_comparison as fair
from course_lib.exercises.probes.cases import REFUSED
from course_lib.exercises.question import Target

question = question_maker.of("09_mixed_precision")
SCALES = 2.0 ** np.arange(41)


# q1: a loss scale's window


def _effect(case, scale):
    """Whether float16 makes a number infinite, and the share of the numbers other than zero that it makes zero."""
    numbers = np.concatenate([np.ravel(gradient) for gradient in case["gradients"]])
    with np.errstate(over="ignore"):
        scaled = (numbers[numbers != 0] * scale).astype("float16")
    return not np.isfinite(scaled).all(), np.mean(scaled == 0)


def _is_right(case, scale):
    overflows, lost_share = _effect(case, scale)
    return not overflows and lost_share <= case["largest_lost_share"]


def _each_scale(judge):
    """A target: for every case with a scale of the learner's, judge(case, scale) is True or says why not."""

    def holds(answers, seed):
        said = (
            judge(case, scale)
            for case, scale in zip(probes.gradient_sets(seed), answers["scales"], strict=True)
            if scale != REFUSED and (scale in SCALES or judge is _is_a_power)
        )
        return next((line for line in said if line is not True), True)

    return holds


def _named(scale):
    return f"2^{np.log2(scale):.0f}" if scale in SCALES else f"{scale:g}"


def _is_a_power(case, scale):
    return scale in SCALES or f"one of yours is {_named(scale)}"


def _nothing_overflows(case, scale):
    return not _effect(case, scale)[0] or f"with a scale of {_named(scale)} a number becomes infinite"


def _little_is_lost(case, scale):
    (_, share), most = _effect(case, scale), case["largest_lost_share"]
    return bool(share <= most) or f"with a scale of {_named(scale)} {share:.1%} become zero, and {most:.1%} may"


def _no_smaller(case, scale):
    return scale == 1 or not _is_right(case, scale / 2) or f"where you take {_named(scale)}, half of it does"


def _has_a_scale(case):
    return any(_is_right(case, one) for one in SCALES)


def _shown(case):
    """The numbers of a small case."""
    numbers = [gradient.tolist() for gradient in case["gradients"]]
    few = sum(map(len, numbers)) < 10
    return f", with gradients {numbers} of which {case['largest_lost_share']:.0%} may become zero" if few else ""


def _refused_alone(answers, seed):
    for case, scale in zip(probes.gradient_sets(seed), answers["scales"], strict=True):
        if _has_a_scale(case) and scale == REFUSED:
            return "you raise it where there is a right scale" + _shown(case)
        if not _has_a_scale(case) and scale != REFUSED:
            return f"you return {_named(scale)} where no scale is right" + _shown(case)
    return True


def _scale_where_none_is_right(answers, seed):
    pairs = list(zip(probes.gradient_sets(seed), answers["scales"], strict=True))
    none = [scale for case, scale in pairs if not _has_a_scale(case)]
    rest = [scale != REFUSED and _is_right(case, scale) for case, scale in pairs if _has_a_scale(case)]
    return all(rest) and REFUSED not in none


def _exactly_is_refused(answers, seed):
    """Whether each scale is the smallest that loses less than it may, or in each case also one that loses nothing."""

    def found(case, fits):
        losses = ((scale, *_effect(case, scale)) for scale in SCALES)
        most = case["largest_lost_share"]
        return next((scale for scale, overflows, share in losses if not overflows and fits(share, most)), REFUSED)

    rules = (lambda share, most: share < most), (lambda share, most: share < most or share == 0)
    cases = probes.gradient_sets(seed)
    return any(answers["scales"] == [found(case, rule) for case in cases] for rule in rules)


def _sums_are_tested(answers, seed):
    """Whether each scale is the smallest that loses little and at which sums are finite, of each array's or of all."""

    def found(case, arrays):
        for scale in SCALES:
            with np.errstate(all="ignore"):
                sums = [np.sum((array * scale).astype("float16")) for array in arrays]
            if np.isfinite(sums).all() and _effect(case, scale)[1] <= case["largest_lost_share"]:
                return scale
        return REFUSED

    cases = probes.gradient_sets(seed)
    each = [found(case, case["gradients"]) for case in cases]
    together = [found(case, [np.concatenate([np.ravel(one) for one in case["gradients"]])]) for case in cases]
    return answers["scales"] in (each, together)


def _some_powers_alone(answers, seed):
    """Whether all scales are right that are powers of 4, or of 8 and so on, without those between."""
    said = [(case, scale) for case, scale in zip(probes.gradient_sets(seed), answers["scales"]) if scale != REFUSED]
    right = all(scale in SCALES and _is_right(case, scale) for case, scale in said)
    return right and math.gcd(*(int(np.log2(scale)) for _, scale in said)) > 1


_SCALES = {"scales": [forms.either(forms.any_number, forms.words(REFUSED))]}
WINDOW = question(
    name="q1",
    title="The window of a loss scale",
    asks_for=("smallest_scale",),
    probe=probes.probe_scale,
    form=_SCALES,
    targets=(
        Target("a power of two, from 1 to 2^40", _each_scale(_is_a_power)),
        Target("no number overflows", _each_scale(_nothing_overflows)),
        Target("at most the allowed share of the numbers becomes zero", _each_scale(_little_is_lost)),
        Target("no smaller power of two does", _each_scale(_no_smaller)),
        Target("a ValueError where no scale is right, and only there", _refused_alone),
    ),
    recognise={
        "exactly is refused": _exactly_is_refused,
        "none not refused": _scale_where_none_is_right,
        "sums tested": _sums_are_tested,
        "not every power": _some_powers_alone,
    },
)


# q2: a loss scale's state machine


def _has_overflow(case):
    return not all(np.isfinite(gradient).all() for gradient in case["gradients"])


def _grows(case):
    return not _has_overflow(case) and case["good_steps"] + 1 == case["growth_steps"]


def _next_state(case):
    """The scale and the count of good steps that are right."""
    if _has_overflow(case):
        return max(case["scale"] / 2, 1.0), 0
    if _grows(case):
        return min(2 * case["scale"], case["largest_scale"]), 0
    return case["scale"], case["good_steps"] + 1


def _state_is_right(chosen):
    """A target: scale and good steps are right in the chosen cases."""

    def holds(answers, seed):
        for case, got in zip(probes.transitions(seed), answers["updates"], strict=True):
            state, good_steps = (got["scale"], got["good_steps"]), case["good_steps"]
            if chosen(case) and state != _next_state(case):
                good = f"good step {good_steps + 1} of {case['growth_steps']}"
                after = "an overflow" if _has_overflow(case) else good
                before = f"scale {case['scale']:g} and {good_steps} good steps"
                return f"after {after}, {before} become {state[0]:g} and {state[1]}"
        return True

    return holds


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
        error = np.max([np.max(abs(mine - right) / abs(right)) for mine, right in pairs])
        if not error <= FLOAT32:
            return f"with a scale of {case['scale']:g}, a number is off by {error:.1%}"
        if got["dtypes"] not in (["float32"], ["float64"], ["float32", "float64"]):
            return f"yours are {' and '.join(got['dtypes'])}"
    return True


def _passed_through_float16(answers, seed):
    """Whether all unscaled gradients are quotients in float16; a scale beyond 65,504 is infinite there."""
    for case, update in zip(probes.transitions(seed), answers["updates"], strict=True):
        for got, gradient in zip(update["unscaled"] or (), case["gradients"], strict=not _has_overflow(case)):
            quotients = (gradient / np.float16(case["scale"]), (gradient / np.float32(case["scale"])).astype("float16"))
            if not any(np.array_equal(got, one) for one in quotients):
                return False
    return True


def _gradients_of_skipped_steps(answers, seed):
    pairs = list(zip(probes.transitions(seed), answers["updates"], strict=True))
    states = all((got["scale"], got["good_steps"]) == _next_state(case) for case, got in pairs)
    return states and _unscales(answers, seed) is True and all(got["unscaled"] is not None for _, got in pairs)


def _counts_from_one(answers, seed):
    updates = zip(probes.transitions(seed), answers["updates"], strict=True)
    pairs = [((got["scale"], got["good_steps"]), _next_state(case)) for case, got in updates]
    wrong = [(got, right) for got, right in pairs if got != right]
    return bool(wrong) and all(right[1] == 0 and got == (right[0], 1) for got, right in wrong)


def _updates_as(name):
    """Recognise a mistake by its edit, with gradients in float64 as well as in float32."""

    def recognise(answers, seed):
        (edit,) = (mistake.edit for mistake in SEARCH.mistakes if mistake.name == name)
        expected = probes.probe_updates(SEARCH.answer.names(edit), seed)
        return same(*(list(map(_with_either_float, each["updates"])) for each in (answers, expected)))

    return recognise


def _with_either_float(update):
    return update | {"dtypes": sorted({"float32" if dtype == "float64" else dtype for dtype in update["dtypes"]})}


_BY_EDIT = ("not divided", "NaN passes", "sums tested", "overflow forgotten", "no cap", "halved for each array")
_BY_EDIT += ("bound never reached", "below 1", "one step late", "one step early", "count kept at the doubling")
_BY_EDIT += (
    "all must overflow",
    "first array alone",
    "scale kept",
    "multiplied",
    "largest number refused",
    "never halved to 1",
)
_BY_EDIT += ("infinity passes", "negative infinity passes", "not skipped at 1", "next scale divides")
_BY_EDIT += ("not counted at the largest", "count goes on at the largest", "never halved to 1")
_UNSCALED = {"unscaled": forms.either([forms.any_array], forms.nothing), "dtypes": [forms.text]}
_UPDATE = {"scale": forms.any_number, "good_steps": forms.whole} | _UNSCALED
SEARCH = question(
    name="q2",
    title="A loss scale that searches",
    asks_for=("update",),
    probe=probes.probe_updates,
    form={"updates": [_UPDATE]},
    targets=(
        Target("a step with infinity or NaN anywhere is skipped, and no other", _skips),
        Target("unscaled gradients are float32 and right to 0.001%", _unscales),
        Target(
            "an overflow halves the scale, never below 1; the count starts again at 0", _state_is_right(_has_overflow)
        ),
        Target("growth_steps good steps double it, to largest_scale; the count starts again", _state_is_right(_grows)),
        Target(
            "any other good step keeps the scale and counts",
            _state_is_right(lambda case: not _has_overflow(case) and not _grows(case)),
        ),
    ),
    recognise={
        **{name: _updates_as(name) for name in _BY_EDIT},
        "divided in float16": _passed_through_float16,
        "counts from 1": _counts_from_one,
        "skipped steps have gradients": _gradients_of_skipped_steps,
    },
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
    counts = [count for _, count in built["products"]]
    share = sum(count for dtype, count in built["products"] if dtype == _short(policy)) / max(1, sum(counts))
    return share >= SHARE or f"yours does {share:.0%} of them in {_short(policy)}"


def _variables_float32(policy, built, seed):
    other = [name for name, (_, variables) in built["layers"].items() if variables not in ("float32", "-")]
    return not other or f"those of {other[0]} are {built['layers'][other[0]][1]}"


def _logits_float32(policy, built, seed):
    if built["logits_dtype"] != "float32":
        return f"they arrive in {built['logits_dtype']}"
    if _computes(built, "logits") != "float32":
        return f"the layer computes in {_computes(built, 'logits')}"
    sizes = probes.counting_model(seed)["sizes"]
    own = [dtype for dtype, count in built["products"] if count == sizes["width"] * sizes["classes"]]
    return all(dtype == "float32" for dtype in own) or f"their product is in {own[0]}"


def _in_order(built):
    return [layer for layer in built["layers"] if layer in LAYERS]


def _logits(seed, largest=None, linear=()):
    """The logits in float64, of counts divided by another number than the largest if there is one.

    linear  the hidden layers without their relu
    """
    wanted = probes.counting_model(seed)
    kernel1, bias1, kernel2, bias2, kernel3, bias3 = (array.astype("float64") for array in wanted["weights"])
    x = wanted["counts"] / (largest or wanted["sizes"]["largest_count"])
    for layer, kernel, bias in zip(HIDDEN, (kernel1, kernel2), (bias1, bias2)):
        x = x @ kernel + bias
        x = x if layer in linear else np.maximum(x, 0)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True)) @ kernel3 + bias3


def _near_float32(policy, built, seed):
    if (order := _in_order(built)) != list(LAYERS):
        return f"your layers are {', '.join(order)}, one after another"
    if not np.isfinite(built["logits"]).all():
        return "yours are not finite"
    error = off(built["logits"], _logits(seed))
    return bool(error <= CLOSE[policy]) or f"yours are off by {error:.0%}"


def _policy_kept(policy, built, seed):
    return all(built["global_policy_kept"]) or "your function leaves another one behind"


def _shorts_are(*layers):
    """Recognise by which layers compute in the short dtype, under both policies."""

    def recognise(answers, seed):
        return all(
            {name for name in LAYERS if _computes(answers[policy], name) == _short(policy)} == set(layers)
            for policy in probes.POLICIES
        )

    return recognise


def _each_policy(judge):
    """Recognise by judge(what was built, policy, seed) under both policies."""
    return lambda answers, seed: all(judge(answers[policy], policy, seed) for policy in probes.POLICIES)


def _one_dtype(answers, seed):
    computes = {_computes(answers[policy], layer) for policy in probes.POLICIES for layer in HIDDEN}
    return len(computes) == 1 and computes != {"float32"}


def _logits_short_in_bfloat16(answers, seed):
    right, other = (answers[policy] for policy in probes.POLICIES)
    shorts = {name for name in LAYERS if _computes(right, name) == "float16"}
    return shorts == set(HIDDEN) and _computes(other, "logits") == "bfloat16"


def _without_relu(answers, seed):
    linear = [_logits(seed, linear=some) for some in (HIDDEN[:1], HIDDEN[1:], HIDDEN)]
    return all(
        any(off(answers[policy]["logits"], logits) <= CLOSE[policy] for logits in linear) for policy in probes.POLICIES
    )


def _width_rounded_up(answers, seed):
    sizes = probes.counting_model(seed)["sizes"]
    rounded = 8 * math.ceil(sizes["width"] / 8)
    return f"weight shape ({sizes['features']}, {rounded}) is not" in answers["stopped"]["error"]


def _products_in_float32(answers, seed):
    """The hidden layers' compute dtype has 16 bits, no product has, and the rest is right."""
    rest = (_variables_float32, _logits_float32, _near_float32)
    dtypes = {dtype for policy in probes.POLICIES for dtype, _ in answers[policy]["products"]}
    rest_right = all(_both(judge)(answers, seed) is True for judge in rest)
    return _shorts_are(*HIDDEN)(answers, seed) and rest_right and dtypes == {"float32"}


def _infinite_before_it_is_divided(answers, seed):
    return _shorts_are(*HIDDEN)(answers, seed) and not np.isfinite(answers[probes.POLICIES[0]]["logits"]).all()


_LOGITS = {"logits_dtype": forms.text, "logits": forms.any_array}
_BUILT = {"layers": {str: (forms.text, forms.text)}, "global_policy_kept": (forms.flag, forms.flag)} | _LOGITS
_BUILT["products"] = [(forms.text, forms.size)]
DTYPES = question(
    name="q4",
    title="What stays float32",
    asks_for=("mixed_model",),
    probe=probes.probe_mixed_model,
    form=dict.fromkeys(probes.POLICIES, _BUILT),
    targets=(
        Target("at least 90% of the dense layers' multiplications in 16 bits", _both(_mostly_short)),
        Target("all variables float32", _both(_variables_float32)),
        Target("logits computed in float32", _both(_logits_float32)),
        Target("for counts up to the largest, logits within 2% (10% in bfloat16) of float32's", _both(_near_float32)),
        Target("Keras' global policy as before", _both(_policy_kept)),
    ),
    recognise={
        "short weights": lambda answers, seed: _both(_variables_float32)(answers, seed) is not True,
        "one policy": _one_dtype,
        "everything short": _shorts_are(*LAYERS),
        "short logits": _shorts_are(*HIDDEN, "logits"),
        "logits short in bfloat16": _logits_short_in_bfloat16,
        "counts cast": _shorts_are("rescale", *HIDDEN),
        "short squares": _shorts_are(*HIDDEN, "norm"),
        "all but the logits": _shorts_are("rescale", *HIDDEN, "norm"),
        "nothing short": _shorts_are(),
        "infinite counts": _infinite_before_it_is_divided,
        "another order": _each_policy(
            lambda built, policy, seed: sorted(_in_order(built)) == sorted(LAYERS) and _in_order(built) != [*LAYERS]
        ),
        "probabilities": _each_policy(
            lambda built, policy, seed: np.allclose(np.sum(built["logits"], axis=-1), 1, atol=0.01)
        ),
        "a literal million": _each_policy(
            lambda built, policy, seed: off(built["logits"], _logits(seed, 1e6)) <= CLOSE[policy]
        ),
        "no cast": _products_in_float32,
        "no relu": _without_relu,
        "width rounded up": _width_rounded_up,
        "one hidden layer short": lambda answers, seed: any(_shorts_are(one)(answers, seed) for one in HIDDEN),
        "policy left behind": lambda answers, seed: (
            not all(answers[policy]["global_policy_kept"][1] for policy in probes.POLICIES)
        ),
        "literal policy put back": lambda answers, seed: all(
            answers[policy]["global_policy_kept"] == [False, True] for policy in probes.POLICIES
        ),
    },
)


# q5: a fair comparison

ALIKE = 1e-10  # differences of errors: float64 arithmetic in another order
TIME = 0.04  # relative: the probe's machine gets 1% slower from one step to the next


def _same_trials(answers, seed):
    arguments = fair.comparison(seed)["arguments"]
    policies, updates = (fair.CONTROL, arguments["mixed"]), arguments["warmup"] + arguments["repeats"]
    wanted = {(policy, trial, updates) for policy in policies for trial in arguments["seeds"]}
    asked = {tuple(trial) for *trial, _ in answers["asked"]}
    made = [tuple(trial) for trial in answers["made"]]
    if late := [trial for trial in asked if trial[2] != updates]:
        return f"you asked a {late[0][0]} trial after {late[0][2]} updates, where {updates} make warm-up and repeats"
    if asked == wanted and len(made) != len(wanted):
        return f"you make {len(made)} trials, where {len(arguments['seeds'])} seeds have one of each precision"
    return asked == wanted or f"for 2 times {len(arguments['seeds'])} trials you asked {len(asked & wanted)} of them"


def _wanted_differences(seed):
    arguments = fair.comparison(seed)["arguments"]
    updates = arguments["warmup"] + arguments["repeats"]
    return [fair.held_out_difference(seed, trial, updates) for trial in arguments["seeds"]]


def _right_differences(answers, seed):
    wanted, got = _wanted_differences(seed), answers["differences"]
    if len(got) != len(wanted):
        return f"you return {len(got)} for {len(wanted)} seeds"
    error = np.abs(np.subtract(got, wanted)).max()
    return bool(error < ALIKE) or f"one of yours is off by {100 * error:.2g} percentage points"


def _another_order(answers, seed):
    """The differences are right, but not in the order of the seeds."""
    wanted, got = _wanted_differences(seed), answers["differences"]
    in_order = len(got) == len(wanted) and np.abs(np.subtract(sorted(got), sorted(wanted))).max() < ALIKE
    return in_order and _right_differences(answers, seed) is not True


def _few_digits(answers, seed):
    """The differences are right in order to float32's digits, or nearly, and some not beyond."""
    errors = np.abs(np.subtract(answers["differences"], _wanted_differences(seed)))
    return ALIKE <= errors.max() < 1e-3


def _right_ratio(answers, seed):
    factor = answers["ratio"] / fair.comparison(seed)["ratio"]
    return abs(factor - 1) < TIME or f"yours is {factor:.3g} times as large"


def _right_verdicts(answers, seed):
    for case, said in zip(fair.verdicts(seed), answers["verdicts"], strict=True):
        if said != case["verdict"]:
            differences = ", ".join(f"{100 * difference:.2f}" for difference in case["differences"])
            tolerance = f"a tolerance of {100 * fair.TOLERANCE:g}"
            return f"for differences of {differences} points and {tolerance} you say {said!r}"
    return True


def _one_policy_first(answers, seed):
    repeats = fair.comparison(seed)["arguments"]["repeats"]
    return _right_ratio(answers, seed) is not True and answers["most_in_a_row"] >= repeats


def _other_updates(answers, seed):
    updates = [{steps for other, _, steps, _ in answers["asked"] if (other == fair.CONTROL) == same} for same in (0, 1)]
    return updates[0] != updates[1]


def _another_number(answers, seed):
    arguments = fair.comparison(seed)["arguments"]
    updates = {steps for _, _, steps, _ in answers["asked"]}
    return len(updates) == 1 and updates != {arguments["warmup"] + arguments["repeats"]}


def _timed_and_asked_apart(answers, seed):
    """Whether the differences are right, of more trials than one of each precision and seed."""
    wanted = 2 * len(fair.comparison(seed)["arguments"]["seeds"])
    return len(answers["made"]) > wanted and _right_differences(answers, seed) is True


def _other_seeds(answers, seed):
    seeds = [{trial for other, trial, _, _ in answers["asked"] if (other == fair.CONTROL) == same} for same in (0, 1)]
    return seeds[0] != seeds[1]


def _as_edited(of, name):
    """Recognise a mistake by one of the answers alone, since people may differ in the others."""

    def recognise(answers, seed):
        (edit,) = (mistake.edit for mistake in FAIR.mistakes if mistake.name == name)
        expected = fair.probe_comparison(FAIR.answer.names(edit), seed)[of]
        if of == "verdicts":
            return answers[of] == expected
        return off(answers[of], expected) <= (TIME / 2 if of == "ratio" else 1e-6)

    return recognise


def _verdicts(fits, always=lambda low, high, said: True):
    """Recognise by the verdicts: fits(low, high, said), ends in tolerances, for each wrong one, `always` for all."""

    def recognise(answers, seed):
        wrong, said = 0, zip(fair.verdicts(seed), answers["verdicts"], strict=True)
        for case, one in said:
            differences = case["differences"] / fair.TOLERANCE
            margin = 2 * np.std(differences, ddof=1) / np.sqrt(len(differences))
            ends = np.mean(differences) - margin, np.mean(differences) + margin
            wrong += one != case["verdict"]
            if not always(*ends, one) or (one != case["verdict"] and not fits(*ends, one)):
                return False
        return wrong > 0

    return recognise


def _beyond_zero(low, high, said):
    return (said == "worse" and low > 0) or (said == "better" and high < 0)


def _never_undecided_beyond_zero(low, high, said):
    return said != "undecided" or low <= 0 <= high


def _begins_at_the_tolerance(low, high, said):
    return (said == "worse" and np.isclose(low, 1)) or (said == "better" and np.isclose(high, -1))


def _kept_differences(answers, seed):
    """Whether the right differences follow others, of a comparison before."""
    wanted = _wanted_differences(seed)
    more = len(answers["differences"]) > len(wanted)
    return more and np.abs(np.subtract(answers["differences"][-len(wanted) :], wanted)).max() < ALIKE


_MEASURED = {"ratio": forms.any_number, "differences": [forms.number], "most_in_a_row": forms.size}
_ASKED = {"made": [(forms.text, forms.whole)], "asked": [(forms.text, forms.whole, forms.size, forms.text)]}
VERDICTS = ("worse and better exchanged", "mean alone", "one standard error", "median", "standard deviation", "with n")
VERDICTS += ("1.96", "two are too few")
FAIR = question(
    name="q5",
    title="A fair comparison",
    asks_for=("compare_precisions", "verdict"),
    probe=fair.probe_comparison,
    form=_MEASURED | _ASKED | {"verdicts": [forms.text]},
    targets=(
        Target("both policies with every seed, asked for their error after warmup + repeats updates", _same_trials),
        Target("one difference per seed, mixed minus float32, on held-out examples", _right_differences),
        Target("the ratio of the times, to 4%, on a machine that gets slower", _right_ratio),
        Target("the verdict that the differences allow", _right_verdicts),
    ),
    recognise={
        "trials apart": _timed_and_asked_apart,
        "other updates": _other_updates,
        "another number of updates": _another_number,
        "one after the other": _one_policy_first,
        "warm-up counted": _as_edited("ratio", "warm-up counted"),
        "mean": _as_edited("ratio", "mean"),
        "ratio of sums": _as_edited("ratio", "ratio of sums"),
        "ratio of medians": _as_edited("ratio", "ratio of medians"),
        "ratio upside down": _as_edited("ratio", "ratio upside down"),
        "on training data": _as_edited("differences", "on training data"),
        "other seeds": _other_seeds,
        "another order of seeds": _another_order,
        "few digits": _few_digits,
        "ratios kept": _as_edited("ratio", "ratios kept"),
        "differences kept": _kept_differences,
        "difference upside down": _as_edited("differences", "difference upside down"),
        **{name: _as_edited("verdicts", name) for name in VERDICTS},
        "no tolerance for worse": _verdicts(_beyond_zero, _never_undecided_beyond_zero),
        "the end at the tolerance": _verdicts(_begins_at_the_tolerance),
        "the tolerance itself": _verdicts(lambda low, high, said: low == high and abs(low) == 1),
        "zero inside": _verdicts(
            lambda low, high, said: low <= 0 <= high or said == "undecided" or _beyond_zero(low, high, said),
            lambda low, high, said: not low <= 0 <= high or said == "no difference",
        ),
        "no worse alone": _verdicts(lambda low, high, said: said == "no difference" and low < -1 and high <= 1),
    },
)


QUESTIONS = (WINDOW, SEARCH, OVERFLOW, DTYPES, FAIR)
