"""Exercise 05, q1: batches of few shapes. Needs NumPy; the wrong answers need JAX when they run."""

import math
from collections import Counter

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.numbers import ROUGH, off
from course_lib.exercises.judges.stops import stopped_by
from course_lib.exercises.probes import ex05_batches as probes
from course_lib.exercises.question import Target

question = question_maker.of("05_tpu")
FLOAT32 = 1e-5  # relative: a mean of a hundred numbers in float32
DTYPES = "int32 and float32"  # of tokens and weights


def _found(made) -> list[list[tuple[int, ...]]]:
    """Of each batch the examples in it: the tokens of a row that have a weight."""
    return [
        [tuple(row[mask != 0].tolist()) for row, mask in zip(tokens, weights, strict=True) if mask.any()]
        for tokens, weights in zip(made["tokens"], made["weights"], strict=True)
    ]


def _counts(made, given):
    """By example: how often it is there, and how often it should be."""
    found = Counter(row for batch in _found(made) for row in batch)
    wanted = Counter(tuple(example.tolist()) for example in given["examples"])
    return {row: (found[row], wanted[row]) for row in {*found, *wanted}}


def _missing(made, given):
    return [row for row, (found, wanted) in _counts(made, given).items() if found < wanted]


def _repeated(made, given):
    return [row for row, (found, wanted) in _counts(made, given).items() if found > wanted]


def _nothing_lost(made, given):
    if missing := _missing(made, given):
        shortest = min(missing, key=len)
        one = f", such as {list(shortest)}" if len(shortest) < 9 else ""
        return f"{len(missing)} of {len(given['examples'])} examples are not there as they were{one}"
    if repeated := _repeated(made, given):
        return f"{len(repeated)} rows with weight are not an example, or one that was there already"
    for weights in made["weights"]:
        lengths = (weights != 0).sum(axis=1)
        if not np.array_equal(weights, np.arange(weights.shape[1]) < lengths[:, None]):
            return "a row's weights are not ones and then zeros"
    return True


def _shapes_allowed(made, given):
    for tokens in made["tokens"]:
        if len(tokens) != given["batch"]:
            return f"a batch has {len(tokens)} rows, and {given['batch']} are asked for"
        if tokens.shape[1] not in given["buckets"]:
            return f"a batch is {tokens.shape[1]} long, and the buckets are {given['buckets']}"
    return True


def _dtypes_right(made, given):
    others = [dtypes for dtypes in made["dtypes"] if dtypes != DTYPES]
    return not others or f"tokens and weights are {others[0]}, where {DTYPES} are asked for"


def _little_padding(made, given):
    if not all(weights.any() for weights in made["weights"]):
        return "a batch of yours is padding alone"
    sizes = [min(size for size in given["buckets"] if size >= len(example)) for example in given["examples"]]
    needed = sum(size * given["batch"] * math.ceil(sizes.count(size) / given["batch"]) for size in given["buckets"])
    tokens, positions = sum(map(len, given["examples"])), sum(batch.size for batch in made["tokens"])
    yours, enough = (f"{1 - tokens / taken:.0%}" for taken in (positions, needed))
    return positions <= needed or f"{yours} of your positions are padding, and {enough} would do"


def _first_batches(answers):
    return answers["made"][0]["tokens"], answers["made"][0]["weights"]


def _unpadded(answers, seed, shares_of):
    """Each batch's loss and gradient in NumPy, where shares_of(weights) is the part of each position in the mean."""
    model = probes.table(seed).astype("float64")
    for tokens, weights in zip(*_first_batches(answers), strict=True):
        shares, gradient = shares_of(weights), np.zeros_like(model)
        np.add.at(gradient, tokens, (2 * shares * (model[tokens].sum(axis=-1) - 1))[..., None])
        yield (probes.token_losses(model, tokens) * shares).sum(), gradient


OVER = {  # what a mean is taken over: of a batch's weights, the part of each position
    "tokens": lambda weights: weights / weights.sum(),
    "positions": lambda weights: weights / weights.size,
    "rows": lambda weights: weights / np.maximum(weights.sum(axis=1, keepdims=True), 1) / weights.any(axis=1).sum(),
}


def _over_all_rows(weights):
    """Of rows without weight the mean counts as 0."""
    return weights / np.maximum(weights.sum(axis=1, keepdims=True), 1) / len(weights)


def _mean_is(*means):
    """Recognise a mean_loss that is one of these, and is not the right one.

    means  functions of a batch's weights: the part of each position in the mean
    """
    return lambda answers, seed: (
        _as_unpadded(answers, seed) is not True
        and any(_worst(answers, seed, shares_of) <= FLOAT32 for shares_of in means)
    )


def _worst(answers, seed, shares_of):
    """How far losses and gradients are from those of this mean, as a share of them."""
    pairs = zip(answers["losses"], answers["gradients"], _unpadded(answers, seed, shares_of), strict=True)
    far = [
        (abs(loss / wanted - 1), off(gradient, wanted_gradient)) for loss, gradient, (wanted, wanted_gradient) in pairs
    ]
    return np.max(far)  # NaN where one is


def _as_unpadded(answers, seed):
    for (losses, weights, wanted), got in zip(probes.TINY_MEANS, answers["tiny_means"], strict=True):
        if not abs(got - wanted) <= FLOAT32:
            losses, weights = (list(map(list, part)) for part in (losses, weights))
            return f"mean_loss({losses}, {weights}) gives {got:.4g}, and {wanted} is wanted"
    worst = _worst(answers, seed, OVER["tokens"])
    if np.isnan(worst):
        return "a batch of padding alone has no mean, or a batch's loss or gradient is NaN"
    return bool(worst <= FLOAT32) or f"off by up to {100 * worst:,.4g}%"


def _shapes(made, given):
    """The rows and the lengths that batches have, and what they may have."""
    rows, lengths = ({tokens.shape[axis] for tokens in made["tokens"]} for axis in (0, 1))
    return rows, lengths, given["batch"], set(given["buckets"])


def _to_longest_of_batch(made, given):
    longest = [(weights != 0).sum(axis=1).max() for weights in made["weights"]]
    return _nothing_lost(made, given) is True and [tokens.shape[1] for tokens in made["tokens"]] == longest


def _ragged(made, given):
    rows, lengths, batch, buckets = _shapes(made, given)
    return max(rows) == batch and min(rows) < batch and lengths <= buckets


def _one_shape(made, given):
    _, lengths, _, buckets = _shapes(made, given)
    return _nothing_lost(made, given) is True and lengths == {max(buckets)}


def _longer_than_needed(made, given):
    rows, lengths, batch, buckets = _shapes(made, given)
    padded = _little_padding(made, given) is not True
    return _nothing_lost(made, given) is True and rows == {batch} and lengths <= buckets and padded


def _rows(made):
    """How many rows have a weight."""
    return sum(int((weights != 0).any(axis=1).sum()) for weights in made["weights"])


def _whole_rows_weighted(made, given):
    alike = all((weights == weights[:, :1]).all() for weights in made["weights"])
    return alike and _rows(made) == len(given["examples"]) and not _all_weighted(made, given)


def _all_weighted(made, given):
    """As many weights as tokens, wherever they stand."""
    return sum(weights.sum() for weights in made["weights"]) == sum(map(len, given["examples"]))


def _several_in_a_row(made, given):
    return _all_weighted(made, given) and _rows(made) < len(given["examples"])


def _in_pieces(made, given):
    return _all_weighted(made, given) and _rows(made) > len(given["examples"])


def _refilled(made, given):
    """All batches of one shape are the same, and some shape has several."""
    shapes = [tokens.shape for tokens in made["tokens"]]
    same = {(tokens.shape, tokens.tobytes(), w.tobytes()) for tokens, w in zip(made["tokens"], made["weights"])}
    return len(same) == len({*shapes}) < len(shapes)


def _one_weight_short(made, given):
    found = Counter(row for batch in _found(made) for row in batch)
    examples = [tuple(example.tolist()) for example in given["examples"]]
    return found in (
        Counter(filter(None, (one[:-1] for one in examples))),
        Counter(one[:-1] or one for one in examples),
    )


def _token_for_padding(answers, seed):
    """In all calls weight is where one number does not stand, whatever it is, and some examples have that number."""
    if _all_calls(*BATCHES)(answers, seed) is True:
        return False
    pairs = [pair for made in answers["made"] for pair in zip(made["tokens"], made["weights"], strict=True)]
    numbers = np.unique(np.concatenate([tokens[weights == 0] for tokens, weights in pairs]))
    examples = np.concatenate([example for given in probes.corpora(seed) for example in given["examples"]])
    return (
        len(numbers) == 1
        and numbers[0] in examples
        and all(np.array_equal(tokens != numbers, weights != 0) for tokens, weights in pairs)
    )


def _zero_for_padding(made, given):
    """Weight is where no 0 stands, and some examples have one."""
    pairs = zip(made["tokens"], made["weights"], strict=True)
    return any((example == 0).any() for example in given["examples"]) and all(
        np.array_equal(tokens != 0, weights != 0) for tokens, weights in pairs
    )


def _zeros_at_the_end(made, given):
    """Every example's weights end with its last token that is not 0."""
    found = Counter(row for batch in _found(made) for row in batch)
    shortened = Counter(tuple(np.trim_zeros(example, "b").tolist()) for example in given["examples"])
    return found == shortened and _missing(made, given) != []


def _padded_in_front(made, given):
    """Every example is there, at the end of its row, and some not at its start."""
    if _missing(made, given) or _repeated(made, given) or _nothing_lost(made, given) is True:
        return False
    return all(
        np.array_equal(weights[:, ::-1], np.arange(weights.shape[1]) < (weights != 0).sum(axis=1)[:, None])
        for weights in made["weights"]
    )


def _copies(made, given):
    """Some examples are there again, and nothing else is wrong."""
    repeated = set(_repeated(made, given))
    return (
        not _missing(made, given) and bool(repeated) and repeated <= {tuple(one.tolist()) for one in given["examples"]}
    )


def _full_alone(made, given):
    """Some examples are missing, and no batch has an empty row."""
    full = all((weights != 0).any(axis=1).all() for weights in made["weights"])
    return full and bool(_missing(made, given)) and not _repeated(made, given)


def _powers_of_two(made, given):
    _, lengths, _, buckets = _shapes(made, given)
    return not lengths <= buckets and all(n in buckets or n & (n - 1) == 0 for n in lengths)


def _kept(answers, seed):
    """The first call is right, and the second gives some of its examples as well, or all of them."""
    (first, second, *_), (made, again, *_) = probes.corpora(seed), answers["made"]
    own, before = ({tuple(one.tolist()) for one in given["examples"]} for given in (second, first))
    repeated = set(_repeated(again, second))
    right = not _missing(again, second) and _nothing_lost(made, first) is True
    return right and repeated <= before and bool(repeated - own)


def _equal_ones_once(answers, seed):
    """Each call gives every example, those with the same tokens once, and nothing else."""
    return all(
        all(found == 1 for found, _ in _counts(made, given).values())
        for made, given in zip(answers["made"], probes.corpora(seed), strict=True)
    )


def _divisor_larger(answers, seed):
    """Every mean is divided by the number of its tokens and by one and the same number more."""
    (*_, wanted), got = probes.TINY_MEANS[1], answers["tiny_means"][1]  # of a single token
    more = wanted / got - 1
    small = (
        abs(mean * (np.sum(weights) + more) / (right * np.sum(weights)) - 1)
        for (_, weights, right), mean in zip(probes.TINY_MEANS, answers["tiny_means"], strict=True)
    )
    alike = _worst(answers, seed, lambda weights: weights / (weights.sum() + more)) <= FLOAT32
    return more > FLOAT32 and max(small) <= FLOAT32 and alike


def _few_digits(answers, seed):
    """Means of a few small whole numbers are right, and those of the batches nearly."""
    tiny = zip(probes.TINY_MEANS, answers["tiny_means"], strict=True)
    small = all(abs(got - wanted) <= FLOAT32 for (*_, wanted), got in tiny)
    return small and FLOAT32 < _worst(answers, seed, OVER["tokens"]) <= ROUGH


def _one_weight_a_row(answers, seed):
    """The mean is divided by the number of rows where there are fewer tokens, and is right elsewhere."""
    wanted = [mean for *_, mean in probes.TINY_MEANS]
    wanted[1] /= len(probes.TINY_MEANS[1][1])
    return np.abs(np.subtract(answers["tiny_means"], wanted)).max() <= FLOAT32


BATCHES = (_nothing_lost, _shapes_allowed, _little_padding)


def _all_calls(*holds):
    """A target on the batches of each call."""

    def target(answers, seed):
        for made, given in zip(answers["made"], probes.corpora(seed), strict=True):
            for one in holds:
                if (held := one(made, given)) is not True:
                    return held
        return True

    return target


def _in_call(recognise):
    """Recognise this in the batches of the first call whose batches are wrong, if any are."""

    def recognised(answers, seed):
        pairs = zip(answers["made"], probes.corpora(seed), strict=True)
        wrong = next((pair for pair in pairs if any(holds(*pair) is not True for holds in BATCHES)), None)
        return wrong is not None and recognise(*wrong)

    return recognised


def _few_compilations(answers, seed):
    if (allowed := _all_calls(_shapes_allowed)(answers, seed)) is not True:
        return allowed
    compiled, allowed = answers["compilations"], len(probes.corpora(seed)[0]["buckets"])
    return compiled <= allowed or f"{compiled} compilations for {len(answers['losses'])} batches"


_TRACED = ("Concret", "TracerBool", "TracerArray", "TracerInteger")  # in the names of JAX's errors
_MADE = dict.fromkeys(("tokens", "weights"), [forms.array]) | {"dtypes": [forms.text]}
FEW_SHAPES = question(
    name="q1",
    title="Remove the recompilation",
    asks_for=("make_batches", "mean_loss"),
    probe=probes.probe_batches,
    form={
        "made": (_MADE,) * 4,
        "compilations": forms.count,
        "losses": [forms.any_number],
        "gradients": [forms.any_array],
        "tiny_means": (forms.any_number,) * len(probes.TINY_MEANS),
    },
    targets=(
        Target(
            "every example is there once, with weight 1, and everything else has weight 0",
            _all_calls(_nothing_lost, _dtypes_right),
        ),
        Target("`batch` rows and a length in `buckets`; JAX compiles at most once for each length", _few_compilations),
        Target(
            "no more padding than with shortest buckets, and one unfilled batch of each", _all_calls(_little_padding)
        ),
        Target("each batch's loss and gradient equal those without padding, to 0.001%", _as_unpadded),
    ),
    recognise={
        "needs values": lambda answers, seed: any(stopped_by(word)(answers, seed) for word in _TRACED),
        "kept from the call before": _kept,
        "batch of padding": _in_call(
            lambda made, given: not _missing(made, given) and any(not weights.any() for weights in made["weights"])
        ),
        "zero taken for padding": _in_call(_zero_for_padding),
        "a number for padding": _token_for_padding,
        "zeros at the end": _in_call(_zeros_at_the_end),
        "whole rows weighted": _in_call(_whole_rows_weighted),
        "several in a row": _in_call(_several_in_a_row),
        "in pieces": _in_call(_in_pieces),
        "filled again": _in_call(_refilled),
        "one weight short": _in_call(_one_weight_short),
        "copies as filling": _in_call(_copies),
        "remainder dropped": _in_call(_full_alone),
        "padded in front": _in_call(_padded_in_front),
        "powers of two": _in_call(_powers_of_two),
        "longest of each batch": _in_call(_to_longest_of_batch),
        "last batch shorter": _in_call(_ragged),
        "one shape": _in_call(_one_shape),
        "longer than needed": _in_call(_longer_than_needed),
        "mean over all positions": _mean_is(OVER["positions"]),
        "mean of means": _mean_is(OVER["rows"], _over_all_rows),
        "padding counted": _mean_is(
            lambda weights: np.full(weights.shape, 1 / weights.size),
            lambda weights: np.full(weights.shape, 1 / weights.sum()),
        ),
        "mean over rows": _mean_is(
            lambda weights: weights / weights.any(axis=1).sum(), lambda weights: weights / len(weights)
        ),
        "sum": _mean_is(lambda weights: weights),
        "a token for each row": _one_weight_a_row,
        "equal ones once": _equal_ones_once,
        "a number added": _divisor_larger,
        "few digits": _few_digits,
        "another dtype": lambda answers, seed: _all_calls(_dtypes_right)(answers, seed) is not True,
    },
)
