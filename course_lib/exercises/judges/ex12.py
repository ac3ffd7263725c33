"""Exercise 12: programs that hang, diverge and crawl, diagnosed and repaired; q1, reports, is in ex12_reports.

Needs NumPy; TensorFlow in the worker processes of q2 to q5.
"""

import functools
import itertools

import numpy as np

from course_lib.exercises.given import incidents
from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.ex12_reports import DIAGNOSE
from course_lib.exercises.probes import ex12 as probes
from course_lib.exercises.question import Target

question = question_maker.of("12_when_it_hangs")
CLOSE = 1e-5  # relative: 0.001%; the programs compute in float64
NO_ROW = [np.full(3, np.nan)]  # q3: the means of a worker that has no kind, where it divides all the same


# What q2 to q5 share


def _diagnosed(wanted):
    """A target's judge: (task, cause, step) of the notebook's own incident."""

    def holds(answers, seed):
        names = ("task", "cause", "step")
        wrong = [name for name, said, due in zip(names, answers["diagnosis"], wanted(), strict=True) if said != due]
        said = ", ".join(map(str, answers["diagnosis"]))
        return not wrong or f"of ({said}) the {' and the '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} not right"

    return Target("the diagnosis of the notebook's run: task, cause and step", holds)


def _hangs(answers, seed):
    """The program still stands still, as the broken one does: one worker is through, and the other waits."""
    return "No task made progress" in answers["stopped"]["error"] and "(data ended)" in answers["stopped"]["error"]


def _unlike_sums(answers, seed):
    """The workers meet in one collective, each with a value of another shape."""
    return "Shape mismatch in the collective" in answers["stopped"]["error"]


def _weights(answers):
    return [np.array(worker["weights"], "float64") for worker in answers["workers"]]


def _identical_and(wanted):
    """A target's judge: the workers' weights are identical, and equal `wanted(seed)` to 0.001%."""

    def holds(answers, seed):
        weights, due = _weights(answers), np.array(wanted(seed))
        if any(own.shape != due.shape for own in weights):
            return f"they are of the shapes {' and '.join(str(own.shape) for own in weights)}, not {due.shape}"
        if not all(np.isfinite(own).all() for own in weights):
            return "some are not finite"
        if apart := np.abs(weights[0] - weights[1]).max():
            return f"the workers' differ by up to {apart:.2g}"
        off = np.abs(weights[0] - due).max() / np.abs(due).max()
        return bool(off <= CLOSE) or f"they are off by {100 * off:,.3g}%"

    return holds


def _close(answers, wanted):
    """Whether every worker has these weights."""
    same = functools.partial(np.allclose, b=wanted, rtol=CLOSE, equal_nan=True)
    return all(own.shape == np.shape(wanted) and same(own) for own in _weights(answers))


TASK, CAUSE, STEP = range(3)  # of a diagnosis


def _said(place, differs):
    """A recogniser: differs(what stands at that place of its diagnosis)."""
    return lambda answers, seed: differs(answers["diagnosis"][place])


def _other_task(wanted):
    """A recogniser: its diagnosis names the other worker."""
    return _said(TASK, lambda said: said in {"worker 0", "worker 1"} - {wanted()[TASK]})


def _other_cause(wanted):
    return _said(CAUSE, lambda said: said != wanted()[CAUSE])


# q2: a loop that one worker leaves


_early_stop = functools.lru_cache(maxsize=32)(incidents.early_stop)


@functools.lru_cache(maxsize=32)
def _descent(seed, steps=probes.STEPS):
    """Of one device: weights before each step; losses of worker 0's rows, worker 1's and all, before each step."""
    settings = _early_stop(seed, steps)
    shards = [tuple(map(np.array, shard)) for shard in settings["shards"]]
    x, y = (np.concatenate(parts) for parts in zip(*shards))
    weights, history, losses = np.array(settings["first_weights"]), [], []
    for _ in range(settings["most_steps"]):
        history.append(weights)
        losses.append([np.mean((a @ weights - b) ** 2) for a, b in (*shards, (x, y))])
        weights = weights - settings["learning_rate"] * 2 * x.T @ (x @ weights - y) / len(y)
    return history, np.array(losses), settings["threshold"]


def _stops(seed, steps=probes.STEPS):
    """Steps after which worker 0's own loss, worker 1's and that of all rows are below the threshold."""
    _, losses, threshold = _descent(seed, steps)
    return (losses < threshold).argmax(axis=0).tolist()


def _left_first():
    *own, _ = _stops(probes.OWN_SEED, ())
    return f"worker {int(np.argmin(own))}", "data ended", min(own)


def _steps(answers):
    return [worker["steps"] for worker in answers["workers"]]


def _same_steps(answers, seed):
    steps, (*_, wanted) = _steps(answers), _stops(seed)
    if steps[0] != steps[1]:
        return f"they take {steps[0]} and {steps[1]}"
    return steps[0] == wanted or f"they take {steps[0]}, {'more' if steps[0] > wanted else 'fewer'} than one device"


def _stopped_after(steps):
    """A recogniser: both workers took so many steps, and have those weights."""

    def recognise(answers, seed):
        return _steps(answers) == [steps(seed)] * 2 and _close(answers, _descent(seed)[0][steps(seed)])

    return recognise


def _mean_of_means(seed):
    _, losses, threshold = _descent(seed)
    return int((losses[:, :2].mean(axis=1) < threshold).argmax())


def _trained(seed, step_of):
    """Both workers' weights before each step, where step_of gives their steps.

    step_of  (the gradients of their sums, rows, whether the own loss is below the threshold) -> (workers, 3)
    """
    settings = _early_stop(seed, probes.STEPS)
    shards = [tuple(map(np.array, shard)) for shard in settings["shards"]]
    weights, history = np.array([settings["first_weights"]] * incidents.WORKERS), []
    for _ in range(settings["most_steps"]):
        history.append(weights)
        errors = [x @ own - y for (x, y), own in zip(shards, weights)]
        sums = np.array([2 * x.T @ error for (x, _), error in zip(shards, errors)])
        below = np.array([np.mean(error**2) < settings["threshold"] for error in errors])
        steps = step_of(sums, np.array([[len(error)] for error in errors]), below[:, None])
        weights = weights - settings["learning_rate"] * steps
    return history


def _trained_by(step_of):
    """A recogniser: each worker's weights are those that it has then after its steps."""

    def recognise(answers, seed):
        history = _trained(seed, step_of)
        due = [history[steps][worker] for worker, steps in enumerate(_steps(answers))]
        return all(np.allclose(own, wanted, rtol=CLOSE) for own, wanted in zip(_weights(answers), due))

    return recognise


def _other_steps(answers, seed, weights_after):
    """Both workers return the same wrong number of steps, and one device's weights after weights_after(it)."""
    steps, other = _steps(answers)
    wrong = steps == other != _stops(seed)[-1]
    return wrong and _close(answers, _descent(seed)[0][weights_after(steps)])


def _updated_once_more(answers, seed):
    """Both return one device's number of steps, and its weights after one update more."""
    *_, wanted = _stops(seed)
    return _steps(answers) == [wanted] * 2 and _close(answers, _descent(seed)[0][wanted + 1])


def _rounded(answers, seed):
    weights, due = _weights(answers), _descent(seed)[0][_stops(seed)[-1]]
    return any(all((np.round(due, places) == own).all() for own in weights) for places in range(1, 6))


def _reads_others(answers, seed):
    """It takes another worker's rows, which are None, for rows."""
    return "NoneType" in answers["stopped"]["error"] and "shards" in answers["stopped"]["line"]


_STOPPED = {"steps": forms.size, "weights": forms.any_array, str: forms.anything}
_DIAGNOSIS = (forms.text, forms.text, forms.whole)
EARLY_STOP = question(
    name="q2",
    title="It hangs",
    asks_for=("diagnosis_2", "stop_together"),
    probe=probes.probe_early_stop,
    form={"diagnosis": _DIAGNOSIS, "workers": (_STOPPED, _STOPPED)},
    takes_long=True,
    targets=(
        _diagnosed(_left_first),
        Target("both workers take as many steps as one device", _same_steps),
        Target(
            "their weights are identical, and equal one device's to 0.001%",
            _identical_and(lambda seed: _descent(seed)[0][_stops(seed)[-1]]),
        ),
    ),
    recognise={
        "own loss": _hangs,
        "one is enough": _stopped_after(lambda seed: min(_stops(seed)[:2])),
        "all on their own": _stopped_after(lambda seed: max(_stops(seed)[:2])),
        "mean of means": _stopped_after(_mean_of_means),
        "one step more": _stopped_after(lambda seed: _stops(seed)[-1] + 1),
        "updates counted": lambda answers, seed: _other_steps(answers, seed, lambda steps: _stops(seed)[-1]),
        "another number of updates": lambda answers, seed: _other_steps(answers, seed, lambda steps: steps),
        "mean gradients": _trained_by(lambda sums, rows, below: np.mean(sums / rows, axis=0)),
        "each alone": _trained_by(lambda sums, rows, below: sums / rows),
        "zeros of one that is through": _trained_by(
            lambda sums, rows, below: np.sum(sums * ~below, axis=0) / sum(rows)
        ),
        "rounded": _rounded,
        "others' rows": _reads_others,
        "two sums in one": _unlike_sums,
        "update before the stop": _updated_once_more,
        "who waits": _other_task(_left_first),
        "another cause": _other_cause(_left_first),
        "one update more": _said(STEP, lambda said: said == _left_first()[STEP] + 1),
    },
)


# q3: sums in each worker's own order


def _orders_part():
    """Of the notebook's incident: who departs from the order of `kinds`, and when first."""
    settings = incidents.mixed_order(probes.OWN_SEED)
    for step, batches in enumerate(zip(*settings["shards"])):
        for worker, batch in enumerate(batches):
            if list(dict.fromkeys(kind for kind, _, _ in batch)) != settings["kinds"]:
                return f"worker {worker}", "other order", step


@functools.lru_cache(maxsize=64)
def _by_kind(seed, rule="right"):
    """The weights after each step on one device, (steps, 3); or what a known mistake of _MEANS makes of them.

    rule  "kept": the sums of earlier steps stay
    """
    settings = incidents.mixed_order(seed, gaps=True)
    weights, history, kept = np.array(settings["first_weights"]), [], {}
    for batches in zip(*settings["shards"]):
        found = {kind: [_of_kind(batch, weights, kind) for batch in batches] for kind in settings["kinds"]}
        if rule == "kept":
            kept = {kind: parts + kept.get(kind, []) for kind, parts in found.items()}
            found = kept
        means = _MEANS.get(rule, _means_of_kinds)(found.values())
        weights = weights - settings["learning_rate"] * np.mean(means or NO_ROW, axis=0)
        history.append(weights)
    return np.array(history)


def _means_of_kinds(found):
    """The mean of each kind that is there. found: of each kind (the sum of its rows' gradients, rows) by worker"""
    return [_pooled(parts) for parts in found if _rows(parts)]


def _pooled(parts):
    return sum(sums for sums, _ in parts) / max(1, _rows(parts))


def _rows(parts):
    return sum(rows for _, rows in parts)


_MEANS = {
    "absent": lambda found: [_pooled(parts) for parts in found],
    "nobody's": lambda found: [_pooled(parts) if _rows(parts) else NO_ROW[0] for parts in found],
    "rows": lambda found: [_pooled([part for parts in found for part in parts])],
    "means": lambda found: [np.mean([s / n for s, n in parts if n], axis=0) for parts in found if _rows(parts)],
    "means of all": lambda found: [
        np.mean([s / max(1, n) for s, n in parts], axis=0) for parts in found if _rows(parts)
    ],
    "added": lambda found: [np.sum(_means_of_kinds(found), axis=0)],
    "both have": lambda found: [_pooled(parts) for parts in found if all(rows for _, rows in parts)],
    "worker 0 has": lambda found: [_pooled(parts) for parts in found if parts[0][1]],
    "worker 1 has": lambda found: [_pooled(parts) for parts in found if parts[1][1]],
    "not 0": lambda found: [_pooled(parts) for parts in found if _pooled(parts).any()],
    "a row more": lambda found: [_pooled([(sums, max(1, rows)) for sums, rows in parts]) for parts in found],
}


def _kinds_by(*rules):
    """A recogniser: the weights are those of one of these mistakes."""
    return lambda answers, seed: any(_close(answers, _by_kind(seed, rule)) for rule in rules)


def _before_the_update(answers, seed):
    first, history = incidents.mixed_order(seed, gaps=True)["first_weights"], _by_kind(seed)
    return _close(answers, [first, *history[:-1]])


def _last_ones(answers, seed):
    history = _by_kind(seed)
    return _close(answers, [history[-1]] * len(history))


def _sums_of_two_kinds(answers, seed):
    """After one step the weights are those where the workers go through the kinds each in another order."""
    settings = incidents.mixed_order(seed, gaps=True)
    first, kinds = np.array(settings["first_weights"]), settings["kinds"]
    one, other = (
        np.array([np.append(*_of_kind(batches[0], first, kind)) for kind in kinds]) for batches in settings["shards"]
    )
    sums = one + other[list(itertools.permutations(range(len(kinds))))]  # (orders, kinds, 4)
    means = np.nanmean(sums[..., :3] / sums[..., 3:], axis=1)
    right, *others = first - settings["learning_rate"] * means
    weights = _weights(answers)[0][0]
    return not np.allclose(right, weights) and any(np.allclose(due, weights, rtol=CLOSE) for due in others)


def _of_kind(batch, weights, kind):
    """(the sum of the gradients of a batch's rows of that kind, their number)."""
    rows = [(np.array(x), y) for found, x, y in batch if found == kind]
    return sum((2 * (x @ weights - y) * x for x, y in rows), np.zeros(3)), len(rows)


@functools.lru_cache(maxsize=32)
def _each_by_its_kinds(seed):
    """Both workers' weights after each step, where each takes its mean over the kinds that it has itself."""
    settings = incidents.mixed_order(seed, gaps=True)
    weights, history = [np.array(settings["first_weights"])] * incidents.WORKERS, []
    for batches in zip(*settings["shards"]):
        found = [[_of_kind(*one, kind) for one in zip(batches, weights)] for kind in settings["kinds"]]
        own = [[_pooled(parts) for parts in found if parts[k][1]] for k in range(incidents.WORKERS)]
        weights = [w - settings["learning_rate"] * np.mean(means or NO_ROW, axis=0) for w, means in zip(weights, own)]
        history.append(weights)
    return np.swapaxes(history, 0, 1)


def _own_mean(answers, seed):
    return bool(np.allclose(_weights(answers), _each_by_its_kinds(seed), rtol=CLOSE, equal_nan=True))


_HISTORY = {"weights": forms.any_array, str: forms.anything}
MIXED_ORDER = question(
    name="q3",
    title="It diverges",
    asks_for=("diagnosis_3", "sum_in_order"),
    probe=probes.probe_mixed_order,
    form={"diagnosis": _DIAGNOSIS, "workers": (_HISTORY, _HISTORY)},
    takes_long=True,
    targets=(
        _diagnosed(_orders_part),
        Target(
            "after every step the weights are identical, and equal one device's to 0.001%", _identical_and(_by_kind)
        ),
    ),
    recognise={
        "own kinds": _hangs,
        "nobody's mean": _kinds_by("nobody's"),
        "own mean": _own_mean,
        "absent kinds count": _kinds_by("absent"),
        "all rows alike": _kinds_by("rows"),
        "mean of means": _kinds_by("means", "means of all"),
        "means added up": _kinds_by("added"),
        "one lacks it": _kinds_by("both have", "worker 0 has", "worker 1 has"),
        "a row for none": _kinds_by("a row more"),
        "sums kept": _kinds_by("kept"),
        "before the update": _before_the_update,
        "one array": _last_ones,
        "two kinds in a sum": _sums_of_two_kinds,
        "two sums in one": _unlike_sums,
        "gradient of 0": _kinds_by("not 0"),
        "who keeps the order": _other_task(_orders_part),
        "another cause": _other_cause(_orders_part),
        "one step late": _said(STEP, lambda said: said == _orders_part()[STEP] + 1),
        "a later step": _said(STEP, lambda said: said > _orders_part()[STEP] + 1),
    },
)


# q4: bad batches


def _lost_each_other():
    """Of the notebook's incident: whose rows are bad, and when."""
    for step, batches in enumerate(zip(*incidents.bad_rows(probes.OWN_SEED)["shards"])):
        for worker, batch in enumerate(batches):
            if not _finite(batch):
                return f"worker {worker}", "data ended", step


def _finite(batch):
    return all(np.isfinite(part).all() for part in batch)


_LEAST_BAD = {"zeros": 3, "rows": 3, "numbers": 3, "good rows": 3, "half": 2, "good workers": 2}


@functools.lru_cache(maxsize=64)
def _skipping(seed, rule="right"):
    """(updates, the final weights) of one device; or what a known mistake makes of them.

    rule  "zeros": a bad part counts as a gradient of 0; "rows": bad rows do; "good rows": the mean is over the others;
          "numbers": bad numbers count as 0; "steps": the rate falls with the steps; "stops": at the first bad batch;
          "half": as "zeros", but skipped where both parts are bad; "good workers": skipped there, and in the other
          batches the mean is over good parts; "sums": a sum for the mean; "paired": each worker leaves its own bad
          batches out
    """
    settings = incidents.bad_rows(seed, several=True)
    weights, updates, shards = np.array(settings["first_weights"]), 0, settings["shards"]
    if rule == "paired":
        shards = [filter(_finite, shard) for shard in shards]
    for step, batches in enumerate(zip(*shards)):
        batches = [tuple(map(np.array, batch)) for batch in batches]
        if sum(not _finite(batch) for batch in batches) >= _LEAST_BAD.get(rule, 1):
            if rule == "stops":
                break
            continue
        gradient = _gradient(batches, weights, rule)
        weights = weights - settings["first_rate"] / (1 + (step if rule == "steps" else updates)) * gradient
        updates += 1
    return updates, weights


def _gradient(batches, weights, rule):
    parts = [_part(*batch, weights, rule) for batch in batches]
    if rule == "good workers":
        parts = [part for part, batch in zip(parts, batches) if _finite(batch)]
    if rule == "good rows":
        rows, good = (
            sum(count(x, y) for x, y in batches) for count in (lambda x, y: len(y), lambda *b: _good(*b).sum())
        )
        return np.mean(parts, axis=0) * rows / good
    return np.mean(parts, axis=0) * (len(parts) if rule == "sums" else 1)


def _good(x, y):
    """Which rows are finite, with their targets."""
    return np.isfinite(x).all(axis=1) & np.isfinite(y)


def _part(x, y, weights, rule):
    """One worker's gradient: the mean over its rows."""
    if rule in ("zeros", "half") and not _finite((x, y)):
        return np.zeros(3)
    if rule == "numbers":
        x, y = (np.where(np.isfinite(part), part, 0) for part in (x, y))
    elif rule != "as it is":
        x, y = np.where(_good(x, y)[:, None], x, 0), np.where(_good(x, y), y, 0)
    return 2 * x.T @ (x @ weights - y) / len(y)


_GOES_ON = {
    "no nan": lambda batches, parts, own: not np.isnan(np.sum(parts, axis=0)).any(),
    "own": lambda batches, parts, own: _finite([parts[own]]),
    "all": lambda batches, parts, own: _finite(parts),
    "one good": lambda batches, parts, own: any(_finite([part]) for part in parts),
    "not one bad": lambda batches, parts, own: sum(not _finite([part]) for part in parts) != 1,
    "targets": lambda batches, parts, own: _finite([y for _, y in batches]),
    "numbers": lambda batches, parts, own: _finite([x for x, _ in batches]),
}


@functools.lru_cache(maxsize=64)
def _each_goes_on(seed, rule, sends_zeros=False, counts=None):
    """[(updates, the final weights)] of the workers, where each goes on with the sum by a rule of its own.

    sends_zeros  in place of a gradient that is not finite
    counts       the rule by which it counts an update; that one where there is none
    """
    settings = incidents.bad_rows(seed, several=True)
    found = [(0, np.array(settings["first_weights"]))] * incidents.WORKERS
    for batches in zip(*settings["shards"]):
        batches = [tuple(map(np.array, batch)) for batch in batches]
        parts = [_part(*batch, weights, "as it is") for batch, (_, weights) in zip(batches, found)]
        mean = np.mean([part if _finite([part]) or not sends_zeros else np.zeros(3) for part in parts], axis=0)
        goes, counted = (
            [_GOES_ON[one](batches, parts, own) for own in range(incidents.WORKERS)] for one in (rule, counts or rule)
        )
        found = [
            (updates + counted[own], weights - settings["first_rate"] / (1 + updates) * mean if goes[own] else weights)
            for own, (updates, weights) in enumerate(found)
        ]
    return found


def _goes_on(*rules, **more):
    """A recogniser: the workers' updates and weights are those of one of these rules."""

    def recognise(answers, seed):
        counted, weights = [worker["updates"] for worker in answers["workers"]], _weights(answers)
        for rule in rules:
            updates, due = zip(*_each_goes_on(seed, rule, **more))
            if counted == [*updates] and np.allclose(weights, due, rtol=CLOSE, equal_nan=True):
                return True
        return False

    return recognise


def _as_many_updates(answers, seed):
    counted, (wanted, _) = [worker["updates"] for worker in answers["workers"]], _skipping(seed)
    said = " and ".join(map(str, counted))
    return counted == [wanted] * 2 or f"they count {said} for {_batches(seed)} batches"


def _batches(seed):
    return len(incidents.bad_rows(seed)["shards"][0])


def _none_skipped(answers, seed):
    skipped = {_batches(seed) - worker["updates"] for worker in answers["workers"]}
    return skipped == {0} and not any(np.isfinite(own).all() for own in _weights(answers))


def _by_rule(*rules):
    return lambda answers, seed: any(_close(answers, _skipping(seed, rule)[1]) for rule in rules)


_SKIPPED = {"updates": forms.size, "weights": forms.any_array, str: forms.anything}
BAD_ROWS = question(
    name="q4",
    title="It hangs on one bad batch",
    asks_for=("diagnosis_4", "skip_together"),
    probe=probes.probe_bad_rows,
    form={"diagnosis": _DIAGNOSIS, "workers": (_SKIPPED, _SKIPPED)},
    takes_long=True,
    targets=(
        _diagnosed(_lost_each_other),
        Target("both workers count one device's updates", _as_many_updates),
        Target(
            "their weights are identical, and equal one device's to 0.001%",
            _identical_and(lambda seed: _skipping(seed)[1]),
        ),
    ),
    recognise={
        "own gradient": _hangs,
        "nothing skipped": _none_skipped,
        "nan alone": _goes_on("no nan"),
        "bad on one alone": _goes_on("own", "one good"),
        "bad on both": _goes_on("not one bad"),
        "own count": _goes_on("all", counts="own"),
        "halves of two batches": _by_rule("paired"),
        "two sums in one": _unlike_sums,
        "rows or targets": _goes_on("targets", "numbers"),
        "zeros instead": _by_rule("zeros", "half", "good workers"),
        "bad rows left out": _by_rule("rows", "good rows"),
        "bad numbers replaced": _by_rule("numbers"),
        "skipped steps counted": _by_rule("steps"),
        "sum for the mean": _by_rule("sums"),
        "stops for good": _by_rule("stops"),
        "one goes on": _goes_on("own", sends_zeros=True),
        "another count": lambda answers, seed: (
            _by_rule("right")(answers, seed) and _as_many_updates(answers, seed) is not True
        ),
        "where it ended": _said(STEP, lambda said: said == _batches(probes.OWN_SEED) - 1),  # the last one
        "who waits": _other_task(_lost_each_other),
        "another cause": _other_cause(_lost_each_other),
    },
)


# q5: a step that is traced again and again


def _distinct(sizes, rates):
    return len({*zip(sizes, rates)})


def _rule_holds(answers, seed):
    for (sizes, rates), count in zip(probes.schedules(seed), answers["counts"], strict=True):
        if count != _distinct(sizes, rates):
            return f"with sizes {sizes} and rates {rates} you say {count}"
    return True


def _counts(rule):
    """A recogniser of another rule."""
    return lambda answers, seed: answers["counts"] == [rule(*one) for one in probes.schedules(seed)]


def _rounded_rates(answers, seed):
    """Rates that are equal to some decimal place count as one, as Python or NumPy rounds."""

    def rule(rounded, places, sizes, rates):
        return _distinct(sizes, [rounded(rate, places) for rate in rates])

    ways = itertools.product((round, np.round), range(6))
    return any(_counts(functools.partial(rule, *way))(answers, seed) for way in ways)


def _last_of_each_size(sizes, rates):
    return sum(_changes([rate for other, rate in zip(sizes, rates) if other == size]) for size in {*sizes})


def _changes(values):
    return 1 + sum(a != b for a, b in itertools.pairwise(values))


def _two_sizes_at_most(sizes, rates):
    return sum(min(2, len({size for size, other in zip(sizes, rates) if other == rate})) for rate in {*rates})


def _added_up(answers, seed):
    added = [len({*sizes}) + len({*rates}) for sizes, rates in probes.schedules(seed)]
    return answers["counts"] in (added, [count - 1 for count in added])


def _few_traces(answers, seed):
    counted = answers["traces"]
    return all(1 <= count <= 2 for count in counted) or f"the workers traced it {' and '.join(map(str, counted))} times"


@functools.lru_cache(maxsize=64)
def _scheduled(seed, rule="right"):
    """The final weights of one device; or what a known mistake makes of them.

    rule  "first": the first rate stays; "second": but for the first size, that of the first step of another size;
          "since then": from that step on, whatever the size; "padded": the mean is over the largest size;
          "sorted", "with rates": steps by size, and their rates with them
    """
    settings = incidents.schedule(seed, probes.LARGEST)
    weights, rates = np.array(settings["first_weights"]), settings["rates"]
    steps = [tuple(np.concatenate(parts) for parts in zip(*batches)) for batches in zip(*settings["shards"])]
    sizes = [len(y) for _, y in steps]
    later = next(step for step, size in enumerate(sizes) if size != sizes[0])
    by_size = np.argsort(sizes, kind="stable")
    places = by_size if rule in ("sorted", "with rates") else range(len(steps))
    if rule == "with rates":
        rates = [rates[place] for place in by_size]
    for step, place in enumerate(places):
        (x, y), rate = steps[place], rates[step]
        if rule in ("first", "second", "since then"):
            second = rule == "second" and len(y) != sizes[0] or rule == "since then" and step >= later
            rate = rates[later if second else 0]
        weights = weights - rate * 2 * x.T @ (x @ weights - y) / (max(sizes) if rule == "padded" else len(y))
    return weights


def _scheduled_by(*rules):
    """A recogniser: the weights are those of one of these mistakes."""
    return lambda answers, seed: any(_close(answers, _scheduled(seed, rule)) for rule in rules)


def _traced(least, most=None):
    """A recogniser: so many traces on both workers, by the schedule's (sizes, rates); or between two numbers."""

    def recognise(answers, seed):
        _, drawn, *_ = probes.schedules(seed)
        return all(least(*drawn) <= count <= (most or least)(*drawn) for count in answers["traces"])

    return recognise


_TRAINED = {"weights": forms.any_array, str: forms.anything}
SCHEDULE = question(
    name="q5",
    title="It crawls",
    asks_for=("traces_of", "train_quickly"),
    probe=probes.probe_schedule,
    form={"counts": [forms.whole], "workers": (_TRAINED, _TRAINED), "traces": (forms.size, forms.size)},
    takes_long=True,
    targets=(
        Target("your rule gives the broken program's traces, exactly", _rule_holds),
        Target("your step is traced at least once and at most twice", _few_traces),
        Target("the weights are identical, and equal one device's to 0.001%", _identical_and(_scheduled)),
    ),
    recognise={
        "a function each step": _traced(lambda sizes, rates: len(sizes)),
        "sizes still": _traced(lambda sizes, rates: len({*sizes})),
        "rates still": _traced(lambda sizes, rates: len({*rates}), _distinct),
        "no tf.function": _traced(lambda sizes, rates: 0),
        "first rate for ever": _scheduled_by("first", "second", "since then"),
        "padding counts": _scheduled_by("padded"),
        "steps by size": _scheduled_by("sorted", "with rates"),
        "one trace a step": _counts(lambda sizes, rates: len(sizes)),
        "rates alone": _counts(lambda sizes, rates: len({*rates})),
        "sizes alone": _counts(lambda sizes, rates: len({*sizes})),
        "changes": _counts(lambda sizes, rates: _changes(zip(sizes, rates))),
        "last rate of each size": _counts(_last_of_each_size),
        "two sizes at most": _counts(_two_sizes_at_most),
        "products": _counts(lambda sizes, rates: len({size * rate for size, rate in zip(sizes, rates)})),
        "rates rounded": _rounded_rates,
        "added up": _added_up,
        "all pairs": _counts(lambda sizes, rates: len({*sizes}) * len({*rates})),
    },
)


QUESTIONS = (DIAGNOSE, EARLY_STOP, MIXED_ORDER, BAD_ROWS, SCHEDULE)
