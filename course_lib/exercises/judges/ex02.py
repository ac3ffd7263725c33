"""Exercise 02: a ring's first half, predictions, a whole run; q2 is in ex02_step, q3 in ex02_prepare.

Needs NumPy; TensorFlow to compare an answer with known mistakes.
"""

import math

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.ex02_prepare import PREPARE
from course_lib.exercises.judges.ex02_step import FLOAT32, REPLICA_STEP
from course_lib.exercises.judges.stops import outside_the_scope, stopped_by
from course_lib.exercises.probes import ex02 as probes
from course_lib.exercises.question import Target

question = question_maker.of("02_data_parallelism")
MOST = 0.6  # of x_train's rows, of which a random choice with replacement takes up 0.86 in two epochs


def _on_each_ring(problem):
    """A target: problem(ring, buffers) is None on every ring, or says what is wrong."""

    def holds(answers, seed):
        for ring, buffers in zip(answers["rings"], probes.rings(seed), strict=True):
            if said := problem(ring, buffers):
                return said
        return True

    return holds


def _wrong_chunks(chunks, wanted):
    return [
        worker for worker, (one, chunk) in enumerate(zip(chunks, wanted, strict=True)) if not np.array_equal(one, chunk)
    ]


def _chunks_complete(ring, buffers):
    whole = np.split(np.sum(buffers, axis=0), len(buffers))
    wanted, shapes = [*map(probes.shown, whole)], [*map(tuple, ring["shapes"])]
    if shapes != [chunk.shape for chunk in whole]:
        return f"the shapes are {shapes}, for {len(wanted)} workers and a buffer of {buffers[0].size}"
    if not (wrong := _wrong_chunks(ring["chunks"], wanted)):
        return None if ring["repeats"] else "a second call with the same buffers returns other chunks"
    worker = wrong[0]
    if buffers[0].size > 6:
        return f"worker {worker}'s chunk holds other numbers ({len(wrong)} of {len(wanted)} workers wrong)"
    given = ", ".join(map(_numbers, buffers))
    got, right = _numbers(ring["chunks"][worker]), _numbers(wanted[worker])
    return f"for {given} worker {worker} returns {got}, and {right} is wanted"


def _numbers(array):
    return f"[{', '.join(f'{number:g}' for number in array)}]"


def _made_of_own(ring, buffers):
    """A worker whose own buffer and messages stay the same returns and sends the same, whatever the others hold."""
    if not ring["repeats"]:
        return "a second call with the same buffers returns other chunks"
    looked_at = zip(
        ring["chunks"], ring["among_others"], ring["sends_the_same"], ring["receives_the_same"], strict=True
    )
    for worker, (chunk, again, sends_the_same, receives_the_same) in enumerate(looked_at):
        if not receives_the_same:
            return f"where the others hold other numbers, other messages come to worker {worker}"
        if not np.array_equal(chunk, again):
            return f"worker {worker}'s chunk changes with what the other workers hold, even where it receives the same"
        if not sends_the_same:
            return f"what worker {worker} sends changes with what the others hold, even where it receives the same"
    return None


def _few_bytes(ring, buffers):
    workers, size = len(buffers), buffers[0].nbytes
    allowed = (workers - 1) * size // workers
    return None if ring["sent_bytes"] == [allowed] * workers else f"yours send {ring['sent_bytes']} B of {size} B"


def _to_the_right(ring, buffers):
    if not ring["hops"]:
        return "yours sends no message"
    return None if ring["hops"] == [1] else f"yours go {' or '.join(map(str, ring['hops']))} workers to the right"


def _few_rounds(ring, buffers):
    workers = len(buffers)
    return None if ring["rounds"] == workers - 1 else f"{ring['rounds']} rounds for {workers} workers"


def _every_ring(fits):
    """Recognise answers of which fits(ring, number of workers) holds on every ring."""
    return lambda answers, seed: all(fits(ring, len(ring["sent_bytes"])) for ring in answers["rings"])


def _in_several_rounds(answers, seed):
    """The large ring alone takes more than N-1 rounds."""
    more = [ring["rounds"] - len(ring["sent_bytes"]) + 1 for ring in answers["rings"]]
    return more[-1] > 0 and not any(more[:-1])


def _whole_swap(answers, seed):
    """With two workers each sends its buffer, and with more the right number of bytes."""
    bytes_fit = [
        (ring["sent_bytes"] == [buffers[0].nbytes] * 2) if len(buffers) == 2 else _few_bytes(ring, buffers) is None
        for ring, buffers in zip(answers["rings"], probes.rings(seed), strict=True)
    ]
    return all(bytes_fit)


def _kept_between_calls(answers, seed):
    """The chunks of all first calls are right, and some of second calls with the same buffers are others."""
    return not all(ring["repeats"] for ring in answers["rings"]) and all(
        not _wrong_chunks(ring["chunks"], [*map(probes.shown, np.split(np.sum(buffers, axis=0), len(buffers)))])
        for ring, buffers in zip(answers["rings"], probes.rings(seed), strict=True)
    )


def _read_elsewhere(sends_the_same):
    """Recognise right chunks and messages that are not made of own buffers and messages: what is returned, or sent."""
    right = (_chunks_complete, _few_bytes, _few_rounds, _to_the_right)

    def recognise(answers, seed):
        met = all(_on_each_ring(problem)(answers, seed) is True for problem in right)
        same = all(all(ring["sends_the_same"]) for ring in answers["rings"])
        return met and same == sends_the_same and _on_each_ring(_made_of_own)(answers, seed) is not True

    return recognise


_RING = {
    **dict.fromkeys(("chunks", "among_others"), [forms.array]),
    **dict.fromkeys(("sent_bytes", "hops"), [forms.size]),
    **dict.fromkeys(("sends_the_same", "receives_the_same"), [forms.flag]),
    "shapes": [[forms.size]],
    "repeats": forms.flag,
    "rounds": forms.size,
}
REDUCE_SCATTER = question(
    name="q1",
    title="Reduce-scatter around a ring",
    asks_for=("reduce_scatter",),
    probe=probes.probe_reduce_scatter,
    form={"rings": [_RING]},
    targets=(
        Target("worker w returns chunk w of the sum", _on_each_ring(_chunks_complete)),
        Target("every worker sends (N-1)/N of its buffer's bytes", _on_each_ring(_few_bytes)),
        Target("N-1 rounds", _on_each_ring(_few_rounds)),
        Target("every message goes one worker to the right", _on_each_ring(_to_the_right)),
        Target("a worker uses its own buffer and what it received, nothing else", _on_each_ring(_made_of_own)),
    ),
    recognise={
        "kept between calls": _kept_between_calls,
        "another worker's memory": _read_elsewhere(sends_the_same=True),
        "received, not used": _read_elsewhere(sends_the_same=False),
        "one message a round": _every_ring(lambda ring, workers: ring["rounds"] == workers * (workers - 1)),
        "several rounds a chunk": _in_several_rounds,
        "two workers swap": _whole_swap,
        "sent to the left": _every_ring(lambda ring, workers: ring["hops"] == [workers - 1]),
        "straight to the owner": _every_ring(
            lambda ring, workers: ring["hops"] == [*range(1, workers)] and len({*ring["sent_bytes"]}) == 1
        ),
        "a whole all-reduce": _every_ring(lambda ring, workers: ring["rounds"] == 2 * (workers - 1)),
        "one round too many": _every_ring(lambda ring, workers: ring["rounds"] == workers),
        "one round too few": _every_ring(lambda ring, workers: ring["rounds"] == workers - 2),
    },
)


def _rates_where(chosen):
    """A target: the rates of the cases of which chosen(step, warmup_steps) holds."""

    def holds(answers, seed):
        for case, rate in zip(probes.warm_ups(seed), answers["rates"], strict=True):
            (step, one, replicas, warmup), wanted = case, _rate(*case)
            if chosen(step, warmup) and not math.isclose(rate, wanted, rel_tol=1e-6):
                if warmup < 10:
                    said = "divides by zero" if math.isnan(rate) else f"gives {rate:.4g}"
                    return f"learning_rate({step}, {one:g}, {replicas}, {warmup}) {said}, and {wanted:g} is wanted"
                said = f"{rate / one:.7g} times the one-device rate"
                return f"at step {step} of a warm-up of {warmup}, {replicas} replicas, yours is {said}"
        return True

    return holds


def _rate(step, one, replicas, warmup):
    return one + (replicas - 1) * one * min(step / warmup, 1)


_at_first = _rates_where(lambda step, warmup: step == 0)
_in_between = _rates_where(lambda step, warmup: 0 < step < warmup)
_at_last = _rates_where(lambda step, warmup: step >= warmup)


def _curved(answers, seed):
    return (_at_first(answers, seed), _at_last(answers, seed)) == (True, True)


def _rates_are(*rates):
    """Recognise the rates that one of these gives, except where the warm-up is one step, which some cannot divide by.

    rates  rate(step, one_device_rate, replicas, warmup_steps)
    """

    def recognise(answers, seed):
        cases, given = zip(
            *[row for row in zip(probes.warm_ups(seed), answers["rates"], strict=True) if row[0][-1] > 1]
        )
        return any(np.allclose(given, [rate(*case) for case in cases], rtol=1e-6, atol=0) for rate in rates)

    return recognise


def _share(done):
    """The rate with another share of the rise: done(step, warmup_steps) before it is limited to 1."""
    return lambda step, one, replicas, warmup: one * (1 + (replicas - 1) * min(done(step, warmup), 1))


def _falls_again(answers, seed):
    cases = [(case[0] - case[3], rate, _rate(*case)) for case, rate in zip(probes.warm_ups(seed), answers["rates"])]
    fits = [math.isclose(rate, wanted, rel_tol=1e-6) or late > 0 and rate < wanted for late, rate, wanted in cases]
    return all(fits) and any(late > 0 and rate < 0.999 * wanted for late, rate, wanted in cases)


def _kept_rates(answers, seed):
    """Every rate is the right one of this case or of an earlier, and some of them of no step of its own warm-up."""
    cases, rates = probes.warm_ups(seed), answers["rates"]
    right = [_rate(*case) for case in cases]
    kept = all(
        any(math.isclose(rate, one, rel_tol=1e-6) for one in right[: place + 1]) for place, rate in enumerate(rates)
    )
    return kept and not all(map(_of_some_step, rates, cases))


def _of_some_step(rate, case):
    _, one, replicas, warmup = case
    steps = warmup * (rate / one - 1) / max(1, replicas - 1)  # after the one-device rate
    whole = math.isclose(steps, round(steps), abs_tol=1e-6 * warmup)
    return whole and 0 <= round(steps) <= (warmup if replicas > 1 else 0)


def _at_most(answers, seed):
    """Every rate is right for the replicas up to some number, whatever it is, and more count as that number."""
    _, one, replicas, _ = probes.warm_ups(seed)[-1]
    most = answers["rates"][-1] / one

    def rate(step, one, replicas, warmup):
        return _rate(step, one, min(replicas, most), warmup)

    return 1 < most < 0.999 * replicas and _rates_are(rate)(answers, seed)


def _rounded(decimals):
    return lambda *case: round(_rate(*case), decimals)


LEARNING_RATE = question(
    name="q4",
    title="Scale the learning rate, with a warm-up",
    asks_for=("learning_rate",),
    probe=probes.probe_learning_rate,
    form={"rates": [forms.any_number]},
    targets=(
        Target("step 0 uses the one-device rate", _at_first),
        Target("in between the rate rises in a straight line", _in_between),
        Target("from warmup_steps on it is N times the one-device rate", _at_last),
    ),
    recognise={
        "one step early": _rates_are(_share(lambda step, warmup: step / (warmup - 1))),
        "steps counted from 1": _rates_are(
            _share(lambda step, warmup: (step + 1) / warmup), _share(lambda step, warmup: (step + 1) / (warmup + 1))
        ),
        "full at the last step": _rates_are(_share(lambda step, warmup: step / warmup if step < warmup - 1 else 1)),
        "falls again": _falls_again,
        "rounded": _rates_are(*map(_rounded, range(1, 15))),
        "a largest number of replicas": _at_most,
        "a factor": _rates_are(lambda step, one, replicas, warmup: _rate(step, 1, replicas, warmup)),
        "remembered": _kept_rates,
        "curved": _curved,
    },
)


def _seconds(algorithm, size_bytes, workers, latency, gigabits, levels=math.ceil):
    """The latency-bandwidth model; `levels` makes the tree's log2 of the workers a number of levels."""
    rounds = {"naive": workers - 1, "ring": workers - 1, "tree": levels(math.log2(workers))}[algorithm]
    message_bytes = size_bytes / workers if algorithm == "ring" else size_bytes
    return 2 * rounds * latency + 2 * rounds * message_bytes / (gigabits * 1e9 / 8)


def _predicted(algorithm):
    def holds(answers, seed):
        for link, seconds in zip(probes.links(seed), answers[algorithm], strict=True):
            wanted = _seconds(algorithm, *link)
            if not abs(seconds / wanted - 1) <= 1e-6:
                size, workers, latency, gigabits = link
                if latency >= 0.5:
                    call = f'all_reduce_seconds("{algorithm}", {size}, {workers}, {latency:g}, {gigabits:g})'
                    said = "divides by zero" if math.isnan(seconds) else f"gives {seconds:.4g}"
                    return f"{call} {said}, and {wanted:g} is wanted"
                percent = f"{100 * (seconds / wanted - 1):+,.4g}%"
                said = "yours divides by zero" if math.isnan(seconds) else f"yours is {percent} off"
                return f"for {size:,} B, {workers} workers, {gigabits:g} Gbit/s {said}"
        return True

    return holds


def _levels(*ways):
    """Recognise a tree with levels(log2 of the workers) for one of these, beside the right naive and ring."""

    def fits(levels, answers, seed):
        wanted = {name: [_seconds(name, *link, levels) for link in probes.links(seed)] for name in probes.ALGORITHMS}
        return all(np.allclose(answers[name], wanted[name], rtol=1e-6, atol=0) for name in wanted)

    return lambda answers, seed: any(fits(levels, answers, seed) for levels in ways)


def _remembered(answers, seed):
    """Every time is the right one of this link or of an earlier."""
    links = probes.links(seed)
    return all(
        any(math.isclose(seconds, _seconds(name, *link), rel_tol=1e-6) for link in links[: place + 1])
        for name in probes.ALGORITHMS
        for place, seconds in enumerate(answers[name])
    )


def _whole_bandwidth(answers, seed):
    """The bandwidth is rounded down to whole GB/s, or to whole Gbit/s, and where none is left it divides by zero."""

    def fits(name, unit, seconds, link):
        *others, gigabits = link
        left = gigabits // unit * unit
        return math.isclose(seconds, _seconds(name, *others, left), rel_tol=1e-6) if left else math.isnan(seconds)

    links = probes.links(seed)
    return any(
        all(fits(name, unit, *each) for name in probes.ALGORITHMS for each in zip(answers[name], links, strict=True))
        for unit in (8, 1)
    )


def _half(answers, seed):
    """The time of one algorithm or more is half of the right one for every link, and right for the others."""
    times = {
        name: np.array(answers[name]) / [_seconds(name, *link) for link in probes.links(seed)]
        for name in probes.ALGORITHMS
    }
    fits = [[np.allclose(each, part, rtol=1e-6) for part in (0.5, 1)] for each in times.values()]
    return all(map(any, fits)) and any(half for half, _ in fits)


ALL_REDUCE_SECONDS = question(
    name="q5",
    title="Predict an all-reduce",
    asks_for=("all_reduce_seconds",),
    probe=probes.probe_all_reduce_seconds,
    form={name: [forms.any_number] for name in probes.ALGORITHMS},
    targets=tuple(
        Target(f"the {name}'s seconds, exactly as the model gives them", _predicted(name)) for name in probes.ALGORITHMS
    ),
    recognise={
        "one way": _half,
        "remembered": _remembered,
        "whole gigabytes": _whole_bandwidth,
        "level not rounded up": _levels(math.floor, float, round, lambda levels: math.ceil(2 * levels) / 2),
        "natural logarithm": _levels(
            lambda levels: levels * math.log(2), lambda levels: math.ceil(levels * math.log(2))
        ),
        "one level too many": _levels(lambda levels: math.floor(levels) + 1, lambda levels: math.ceil(levels) + 1),
    },
)


def _on_all_replicas(answers, seed):
    if answers["replicas"] != answers["wanted_replicas"]:
        return f"a weight has {answers['replicas']} of {answers['wanted_replicas']} copies"
    if not answers["given_strategy"]:
        return "they belong to another strategy than the argument"
    if not answers["ran_on_replicas"]:
        return "no step ran on the strategy's replicas"
    return answers["identical"] or "the copies differ"


def _logits(answers, seed):
    shape, classes = answers["output_shape"], answers["classes"]
    if list(shape) != [classes]:
        return f"yours have the shape ({', '.join(map(str, shape))}) for each example, and there are {classes} classes"
    if answers["probabilities"]:
        return "yours add up to 1 in every row and none is negative: these are probabilities"
    ends = f"from {answers['least_output']:.3g} to {answers['largest_output']:.3g}"
    return not _squashed(answers, seed) or f"yours go {ends}, for your test examples and for large inputs"


def _squashed(answers, seed):
    """All outputs lie from 0 to 1; or from -1 to 1, and large inputs drive many to the ends, as in a tanh."""
    least, largest = answers["least_output"], answers["largest_output"]
    at_ends = answers["outputs_at_1"] > 0.1
    return largest <= 1 + FLOAT32 and least >= -FLOAT32 or -1 - FLOAT32 <= least and largest <= 1 + FLOAT32 and at_ends


def _share_of_rows(answers):
    return math.ceil(probes.GLOBAL_BATCH / answers["wanted_replicas"])


def _rows_divided(answers, seed):
    """Each replica gets its share of every step's 128 rows, in one call or several, and rows that are its own."""
    seen, share, replicas = answers["trained_on"], _share_of_rows(answers), answers["wanted_replicas"]
    if not sum(seen["calls"]):
        return True  # layers called one by one: then there is nothing to count
    if seen["most_rows"] > share:
        return f"a replica's model was called with {seen['most_rows']:,} rows, and its share of 128 is {share}"
    if seen["same_rows"]:
        return "in most steps the replicas got the same rows"
    wanted = _fewest_rows(answers)
    if sum(seen["rows"]) < wanted:
        return f"in all steps the replicas got {sum(seen['rows']):,} rows, and these are {wanted:,} or more"
    full = answers["train_examples"] // probes.GLOBAL_BATCH * len(answers["losses"])
    least = full * (probes.GLOBAL_BATCH // replicas)
    return min(seen["rows"]) >= least or f"in {full} full steps a replica got {min(seen['rows']):,} rows"


def _fewest_rows(answers):
    """Rows of all epochs, the last of each perhaps in an uneven step, or left out."""
    full = answers["train_examples"] // probes.GLOBAL_BATCH
    steps = answers["steps_per_epoch"]
    if steps <= full:
        each = probes.GLOBAL_BATCH * steps
    elif steps <= full + 1:
        each = min(answers["train_examples"], probes.GLOBAL_BATCH * steps)
    else:  # too many, which another target says: batches may have several
        each = probes.GLOBAL_BATCH * full
    return math.floor(each * len(answers["losses"]))


def _most_rows_seen(answers, seed):
    """Of rows that differ; of x_train's own where nearly all that came are."""
    if not sum(answers["trained_on"]["calls"]):
        return True
    different, full = answers["trained_on"]["different"], answers["train_examples"] // probes.GLOBAL_BATCH
    unchanged = different["both"] >= 0.9 * different["seen"]
    came = different["both" if unchanged else "seen"]
    room = min(different["x_train"], full * probes.GLOBAL_BATCH or different["x_train"])
    rows = "of its rows came" if unchanged else "different rows came, altered"
    return came >= MOST * room or f"{came:,} {rows} to the replicas, and x_train has {different['x_train']:,}"


def _full_global_batches(answers, seed):
    return _steps_for_batch(answers, probes.GLOBAL_BATCH) or (
        f"{answers['train_examples']:,} examples took {answers['steps_per_epoch']:g} steps "
        f"for each of your {len(answers['losses'])} losses"
    )


def _loss_falls(answers, seed):
    losses = answers["losses"]
    if answers["validation_losses"]:
        return "yours are those of your validation data, and not of the training"
    falls = len(losses) > 1 and np.isfinite(losses).all() and losses[-1] < 0.8 * losses[0]
    return falls or f"your losses are {', '.join(f'{loss:.3g}' for loss in losses)}"


def _learned(answers, seed):
    return answers["accuracy"] >= answers["commonest"] + 0.2 or (
        f"yours is {answers['accuracy']:.1%}, and always answering the commonest class gives {answers['commonest']:.1%}"
    )


def _nothing_leaked(answers, seed):
    if answers["leaked"] > 0.01:
        return f"{answers['leaked']:.0%} of the test examples are also training examples"
    return answers["leaked_later"] <= 0.01 or (
        f"{answers['leaked_later']:.0%} of the test examples of a later load_data() are training examples of an earlier"
    )


def _steps_for_batch(answers, batch):
    full = answers["train_examples"] / batch
    return answers["steps_per_epoch"] > 0 and answers["steps_per_epoch"] in (math.floor(full), math.ceil(full))


def _fewer_rows(answers, seed):
    rows = sum(answers["trained_on"]["rows"])
    return _full_global_batches(answers, seed) is True and 0 < rows < _fewest_rows(answers)


def _two_optimizers(answers, seed):
    most = math.ceil(answers["train_examples"] / probes.GLOBAL_BATCH)
    return answers["steps_per_epoch"] > max(most, answers["compiled_steps"])


def _some_held_out(answers, seed):
    full = answers["train_examples"] / probes.GLOBAL_BATCH
    return full / 2 < answers["steps_per_epoch"] < math.floor(full)


def _rises(answers, seed):
    losses = answers["losses"]
    return len(losses) > 1 and losses[0] < losses[-1] and all(0 <= loss <= 1 for loss in losses)


def _not_settled(answers, seed):
    learns = _loss_falls(answers, seed) is True
    return learns and not answers["statistics_identical"] and _learned(answers, seed) is not True


_TRAINED = {
    "wanted_replicas": forms.replicas,
    "replicas": forms.count,
    **dict.fromkeys(
        (
            "identical",
            "statistics_identical",
            "given_strategy",
            "ran_on_replicas",
            "probabilities",
            "validation_losses",
        ),
        forms.flag,
    ),
    **dict.fromkeys(("least_output", "largest_output", "outputs_at_1"), forms.number),
    "output_shape": [forms.size],
    "classes": forms.count,
    "trained_on": {
        **dict.fromkeys(("calls", "rows"), [forms.size]),
        "most_rows": forms.size,
        "same_rows": forms.flag,
        "different": dict.fromkeys(("x_train", "seen", "both"), forms.size),
    },
    "train_examples": forms.size,
    "steps_per_epoch": forms.number,
    "compiled_steps": forms.number,
    "losses": [forms.any_number],
    **dict.fromkeys(("accuracy", "commonest", "leaked", "leaked_later"), forms.share),
}
OWN_RUN = question(
    name="q6",
    title="Your model, your data, four replicas",
    asks_for=("load_data", "train"),
    probe=probes.probe_training,
    form=_TRAINED,
    targets=(
        Target("the model trains on all replicas, with identical copies of every trained weight", _on_all_replicas),
        Target("the model returns logits", _logits),
        Target("one optimizer step per global batch of 128", _full_global_batches),
        Target("a step divides its 128 rows over the replicas", _rows_divided),
        Target("training reaches most rows of x_train", _most_rows_seen),
        Target("the last epoch's loss is below 0.8 of the first's", _loss_falls),
        Target("test accuracy at least 20 points above the commonest class", _learned),
        Target("no more than 1% of the test examples are also in the training data", _nothing_leaked),
    ),
    recognise={
        "outside the scope": outside_the_scope,
        "another strategy": lambda answers, seed: answers["replicas"] > 1 and not answers["given_strategy"],
        "probabilities": lambda answers, seed: answers["probabilities"],
        "squashed": _squashed,
        "two optimizers": _two_optimizers,
        "local batch of 128": lambda answers, seed: _steps_for_batch(
            answers, probes.GLOBAL_BATCH * answers["wanted_replicas"]
        ),
        "batch divided by hand": lambda answers, seed: _steps_for_batch(
            answers, probes.GLOBAL_BATCH // answers["wanted_replicas"]
        ),
        "whole batch to each": lambda answers, seed: (
            _full_global_batches(answers, seed) is True and answers["trained_on"]["most_rows"] == probes.GLOBAL_BATCH
        ),
        "the same rows to each": lambda answers, seed: (
            answers["trained_on"]["same_rows"] and 0 < answers["trained_on"]["most_rows"] <= _share_of_rows(answers)
        ),
        "fewer rows in a step": _fewer_rows,
        "the same rows again": lambda answers, seed: (
            _rows_divided(answers, seed) is True and _most_rows_seen(answers, seed) is not True
        ),
        "examples held out": _some_held_out,
        "a loss for each step": lambda answers, seed: (
            answers["steps_per_epoch"] == 1 and answers["train_examples"] >= 2 * probes.GLOBAL_BATCH
        ),
        "one epoch": lambda answers, seed: len(answers["losses"]) == 1,
        "tested on training data": lambda answers, seed: answers["leaked"] > 0.01,
        "a new split at each call": lambda answers, seed: answers["leaked"] <= 0.01 < answers["leaked_later"],
        "trained elsewhere": lambda answers, seed: (
            answers["replicas"] == answers["wanted_replicas"] and not answers["ran_on_replicas"]
        ),
        "not compiled": stopped_by("object has no attribute 'optimizer'"),
        "history returned": stopped_by("'History' object is not iterable"),
        "one-hot labels": stopped_by("one class number for each is wanted"),
        "classes from 1": stopped_by("classes are numbered from 0"),
        "validation losses": lambda answers, seed: answers["validation_losses"],
        "rising": _rises,
        "too common a class": lambda answers, seed: answers["commonest"] > 0.8,
        "normalisation not settled": _not_settled,
    },
    takes_long=True,
)

QUESTIONS = (REDUCE_SCATTER, REPLICA_STEP, PREPARE, LEARNING_RATE, ALL_REDUCE_SECONDS, OWN_RUN)
