"""Exercise 12: reports that are read, and programs that hang, diverge and crawl, diagnosed and repaired.

Needs NumPy; TensorFlow in the worker processes of q2 to q5.
"""

import functools

import numpy as np

from course_lib.exercises.given import incidents
from course_lib.exercises.given.seen_tasks import seen_jobs
from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex12 as probes
from course_lib.exercises.question import Target

question = question_maker.of("12_when_it_hangs")
CLOSE = 1e-5  # relative: 0.001%; the programs compute in float64


# q1: reports


def _departs(one, others):
    """Whether at some place its call is none of the others'."""
    return any(
        call not in {other.calls[place] for other in others if place < len(other.calls)}
        for place, call in enumerate(one.calls)
    )


_RULES = {
    "lost": lambda one, others: one.state == "ended",
    "not started": lambda one, others: not one.joined,
    "entered alone": lambda one, others: not {*one.calls} <= {call for other in others for call in other.calls},
    "other order": _departs,
    "data ended": lambda one, others: one.state == "returned",
    "input": lambda one, others: one.at == "input",
    "own code": lambda one, others: one.at == "own code",
}


def _others(one, tasks):
    return [other for other in tasks if other is not one]


def _cause(tasks):
    """(task, cause) by the rules of the question."""
    fitting = ((one.name, cause) for cause, fits in _RULES.items() for one in tasks if fits(one, _others(one, tasks)))
    return next(fitting)


def _tasks_first(tasks):
    """The same, but a task that comes first is named before a rule that comes first."""
    fitting = ((one.name, cause) for one in tasks for cause, fits in _RULES.items() if fits(one, _others(one, tasks)))
    return next(fitting)


def _jobs(answers, seed):
    """tasks, (task, cause) of the answer, (task, cause) by the rules; the shortest records first."""
    rows = [(job, said, _cause(job)) for job, said in zip(seen_jobs(seed), answers["jobs"], strict=True)]
    return sorted(rows, key=lambda row: sum(len(one.calls) for one in row[0]))


def _described(tasks):
    """A job in one line: what several tasks share stands there once."""
    alike = {}
    for one in tasks:
        inside, after = f"in call {len(one.calls)}", f"after {len(one.calls)} calls"
        where = inside if one.inside else f"at {one.at}" if one.at else after
        said = [one.state, *([] if one.joined else ["not joined"]), where]
        calls = f" ({' '.join(one.calls)})" if one.calls else ""
        alike.setdefault(f"{', '.join(said)}{calls}", []).append(one.name.split()[1])
    return "; ".join(f"worker {' and '.join(names)}: {text}" for text, names in alike.items())


def _right_task(answers, seed):
    for job, (task, _), (wanted, _) in _jobs(answers, seed):
        if task != wanted:
            return f"you say {task!r} where the job is {_described(job)}"
    return True


def _right_cause(answers, seed):
    for job, (_, cause), (_, wanted) in _jobs(answers, seed):
        if cause != wanted:
            return f"you say {cause!r} where the job is {_described(job)}"
    return True


def _misread(due, *said):
    """A recogniser: for a job with this cause the answer says one of the others."""

    def recognise(answers, seed):
        return any(wanted == due and cause in said for _, (_, cause), (_, wanted) in _jobs(answers, seed))

    return recognise


def _wrong_where(due, differs):
    """A recogniser: of the jobs with this cause, just those are wrong where differs(task, another one) is true.

    differs  None where the job may be right or wrong
    """

    def recognise(answers, seed):
        found = set()
        for job, said, wanted in _jobs(answers, seed):
            if wanted[1] == due:
                (odd,) = (one for one in job if one.name == wanted[0])
                found.add((differs(odd, _others(odd, job)[0]), tuple(said) != wanted))
        return (True, True) in found and not found & {(True, False), (False, True)}

    return recognise


def _same_calls(odd, other):
    return sorted(odd.calls) == sorted(other.calls) if len(odd.calls) == len(other.calls) else None


def _repeats_its_own(odd, other):
    return any(odd.calls.count(call) > 1 for call in {*odd.calls} - {*other.calls})


def _order_before_alone(answers, seed):
    """Where an own call stands at a place where the others have another one, the answer says other order."""
    rows = [(job, cause) for job, (_, cause), (_, wanted) in _jobs(answers, seed) if wanted == "entered alone"]
    apart = [cause for job, cause in rows if any(len({*calls}) > 1 for calls in zip(*(one.calls for one in job)))]
    return all(cause == "other order" for cause in apart)


def _first_departs(answers, seed):
    """The first task is named where another one departs."""
    return any(
        cause == due == "other order" and task == "worker 0" != wanted
        for _, (task, cause), (wanted, due) in _jobs(answers, seed)
    )


def _who_waits_to_start(answers, seed):
    return any(
        cause == due == "not started" and any(one.name == task and one.at == "strategy" for one in job)
        for job, (task, cause), (_, due) in _jobs(answers, seed)
    )


def _by_tasks(answers, seed):
    return all(tuple(said) == _tasks_first(job) for job, said, _ in _jobs(answers, seed))


def _leaves_out(answers, seed):
    """Some task is never named, though every one is due."""
    return {task for _, _, (task, _) in _jobs(answers, seed)} > {task for _, (task, _), _ in _jobs(answers, seed)}


DIAGNOSE = question(
    name="q1",
    title="Read the reports",
    asks_for=("diagnose",),
    probe=probes.probe_diagnose,
    form={"jobs": [(forms.text, forms.text)]},
    targets=(Target("the right task in all jobs", _right_task), Target("the right cause in all jobs", _right_cause)),
    recognise={
        "last calls alone": _wrong_where("other order", lambda odd, other: odd.calls[-1] == other.calls[-1]),
        "returned first": _wrong_where("other order", lambda odd, other: odd.state == "returned"),
        "differs from one": _first_departs,
        "nobody's own call": _order_before_alone,
        "who waits to start": _who_waits_to_start,
        "lost comes first": _misread("lost", "not started", "entered alone"),
        "own call earlier": _wrong_where("entered alone", lambda odd, other: odd.calls[-1] in other.calls),
        "alone while inside": _wrong_where("entered alone", lambda odd, other: not odd.inside),
        "counted once": _wrong_where("entered alone", _repeats_its_own),
        "calls without order": _wrong_where("other order", _same_calls),
        "one call less": _wrong_where("other order", lambda odd, other: len(odd.calls) < len(other.calls)),
        "a call behind": lambda answers, seed: (
            _misread("input", "data ended")(answers, seed) or _misread("own code", "data ended")(answers, seed)
        ),
        "one task after the other": _by_tasks,
        "a task left out": _leaves_out,
    },
    wrong={"one task after the other": _tasks_first, "a task left out": lambda tasks: ("worker 1", _cause(tasks)[1])},
)


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
    return all(own.shape == np.shape(wanted) and np.allclose(own, wanted, rtol=CLOSE) for own in _weights(answers))


def _other(task):
    return {"worker 0": "worker 1", "worker 1": "worker 0"}[task]


# q2: a loop that one worker leaves


@functools.lru_cache(maxsize=32)
def _descent(seed):
    """Of one device: weights before each step; losses of worker 0's rows, worker 1's and all, before each step."""
    settings = incidents.early_stop(seed)
    shards = [tuple(map(np.array, shard)) for shard in settings["shards"]]
    x, y = (np.concatenate(parts) for parts in zip(*shards))
    weights, history, losses = np.array(settings["first_weights"]), [], []
    for _ in range(settings["most_steps"]):
        history.append(weights)
        losses.append([np.mean((a @ weights - b) ** 2) for a, b in (*shards, (x, y))])
        weights = weights - settings["learning_rate"] * 2 * x.T @ (x @ weights - y) / len(y)
    return history, np.array(losses), settings["threshold"]


def _stops(seed):
    """Steps after which worker 0's own loss, worker 1's and that of all rows are below the threshold."""
    _, losses, threshold = _descent(seed)
    return (losses < threshold).argmax(axis=0).tolist()


def _left_first():
    *own, _ = _stops(probes.OWN_SEED)
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
        "who waits": lambda answers, seed: answers["diagnosis"][0] == _other(_left_first()[0]),
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
    """The weights after each step on one device, (steps, 3); or what a known mistake makes of them.

    rule  "absent": absent kinds count with a gradient of 0; "rows": all rows alike;
          "means": the mean over the workers that have the kind of their own means
    """
    settings = incidents.mixed_order(seed, gaps=True)
    weights, history = np.array(settings["first_weights"]), []
    for batches in zip(*settings["shards"]):
        found = {kind: [_of_kind(batch, weights, kind) for batch in batches] for kind in settings["kinds"]}
        present = [parts for parts in found.values() if sum(rows for _, rows in parts)]
        means = [sum(sums for sums, _ in parts) / sum(rows for _, rows in parts) for parts in present]
        if rule == "absent":
            means += [np.zeros(3)] * (len(found) - len(present))
        elif rule == "rows":
            counts = [sum(rows for _, rows in parts) for parts in present]
            means = [np.average(means, axis=0, weights=counts)]
        elif rule == "means":
            means = [np.mean([sums / rows for sums, rows in parts if rows], axis=0) for parts in present]
        weights = weights - settings["learning_rate"] * np.mean(means, axis=0)
        history.append(weights)
    return np.array(history)


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
        means = [[sum(sums for sums, _ in parts) / max(1, sum(rows for _, rows in parts))] for parts in found]
        own = [[mean for mean, parts in zip(means, found) if parts[k][1]] for k in range(incidents.WORKERS)]
        weights = [w - settings["learning_rate"] * np.mean(m, axis=(0, 1)) for w, m in zip(weights, own)]
        history.append(weights)
    return np.swapaxes(history, 0, 1)


def _own_mean(answers, seed):
    return bool(np.allclose(_weights(answers), _each_by_its_kinds(seed), rtol=CLOSE))


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
        "nobody's mean": lambda answers, seed: not all(np.isfinite(own).all() for own in _weights(answers)),
        "own mean": _own_mean,
        "absent kinds count": lambda answers, seed: _close(answers, _by_kind(seed, "absent")),
        "all rows alike": lambda answers, seed: _close(answers, _by_kind(seed, "rows")),
        "mean of means": lambda answers, seed: _close(answers, _by_kind(seed, "means")),
        "one step late": lambda answers, seed: answers["diagnosis"] == [*_orders_part()[:2], _orders_part()[2] + 1],
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


@functools.lru_cache(maxsize=64)
def _skipping(seed, rule="right"):
    """(updates, the final weights) of one device; or what a known mistake makes of them.

    rule  "zeros": a bad part counts as a gradient of 0; "rows": bad rows do;
          "numbers": bad numbers count as 0; "steps": the rate falls with the steps
    """
    settings = incidents.bad_rows(seed, several=True)
    weights, updates = np.array(settings["first_weights"]), 0
    for step, batches in enumerate(zip(*settings["shards"])):
        batches = [tuple(map(np.array, batch)) for batch in batches]
        if rule in ("right", "steps") and not all(map(_finite, batches)):
            continue
        gradient = np.mean([_part(*batch, weights, rule) for batch in batches], axis=0)
        weights = weights - settings["first_rate"] / (1 + (step if rule == "steps" else updates)) * gradient
        updates += 1
    return updates, weights


def _part(x, y, weights, rule):
    """One worker's gradient: the mean over its rows."""
    if rule == "zeros" and not _finite((x, y)):
        return np.zeros(3)
    bad = ~(np.isfinite(x).all(axis=1) & np.isfinite(y))
    if rule == "numbers":
        x, y = (np.where(np.isfinite(part), part, 0) for part in (x, y))
    else:
        x, y = np.where(bad[:, None], 0, x), np.where(bad, 0, y)
    return 2 * x.T @ (x @ weights - y) / len(y)


def _as_many_updates(answers, seed):
    counted, (wanted, _) = [worker["updates"] for worker in answers["workers"]], _skipping(seed)
    said = " and ".join(map(str, counted))
    return counted == [wanted] * 2 or f"they count {said} for {_batches(seed)} batches"


def _batches(seed):
    return len(incidents.bad_rows(seed)["shards"][0])


def _not_finite_after(answers, seed):
    """How many updates both workers count, whose weights are not finite; 0 for others."""
    counted = {worker["updates"] for worker in answers["workers"]}
    return counted.pop() if len(counted) == 1 and not any(np.isfinite(own).all() for own in _weights(answers)) else 0


def _by_rule(rule):
    return lambda answers, seed: _close(answers, _skipping(seed, rule)[1])


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
        "nothing skipped": lambda answers, seed: _not_finite_after(answers, seed) == _batches(seed),
        "nan alone": lambda answers, seed: 0 < _not_finite_after(answers, seed) < _batches(seed),
        "zeros instead": _by_rule("zeros"),
        "bad rows left out": _by_rule("rows"),
        "bad numbers replaced": _by_rule("numbers"),
        "skipped steps counted": _by_rule("steps"),
        "where it ended": lambda answers, seed: answers["diagnosis"] == [*_lost_each_other()[:2], _last_step()],
    },
)


def _last_step():
    """Of the notebook's incident, as the report shows it."""
    return _batches(probes.OWN_SEED) - 1


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


def _few_traces(answers, seed):
    counted = answers["traces"]
    return all(1 <= count <= 2 for count in counted) or f"the workers traced it {' and '.join(map(str, counted))} times"


@functools.lru_cache(maxsize=64)
def _scheduled(seed, rule="right"):
    """The final weights of one device; or what a known mistake makes of them.

    rule  "first": the first rate stays
    """
    settings = incidents.schedule(seed)
    weights = np.array(settings["first_weights"])
    for step, batches in enumerate(zip(*settings["shards"])):
        x, y = (np.concatenate(parts) for parts in zip(*batches))
        rate = settings["rates"][0 if rule == "first" else step]
        weights = weights - rate * 2 * x.T @ (x @ weights - y) / len(y)
    return weights


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
        "first rate for ever": lambda answers, seed: _close(answers, _scheduled(seed, "first")),
        "one trace a step": _counts(lambda sizes, rates: len(sizes)),
        "rates alone": _counts(lambda sizes, rates: len({*rates})),
        "sizes alone": _counts(lambda sizes, rates: len({*sizes})),
        "added up": _counts(lambda sizes, rates: len({*sizes}) + len({*rates})),
        "all pairs": _counts(lambda sizes, rates: len({*sizes}) * len({*rates})),
    },
)


QUESTIONS = (DIAGNOSE, EARLY_STOP, MIXED_ORDER, BAD_ROWS, SCHEDULE)
