"""Exercise 12, q2: a loop that one worker leaves. Needs NumPy."""

import functools

import numpy as np

from course_lib.exercises.given import incidents
from course_lib.exercises.judges import ex12_runs as runs
from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex12 as probes
from course_lib.exercises.probes import ex12_cases
from course_lib.exercises.question import Target

question = question_maker.of("12_when_it_hangs")
RUNS = 4


@functools.lru_cache(maxsize=64)
def _descent(seed, number):
    """Of one device: weights before each step and after the last that may be; losses of worker 0's rows, worker 1's
    and all, before each step.
    """
    return _descent_of(ex12_cases.early_stops(seed)[number])


def _descent_of(settings):
    shards = [tuple(map(np.array, shard)) for shard in settings["shards"]]
    x, y = (np.concatenate(parts) for parts in zip(*shards))
    weights, history, losses = np.array(settings["first_weights"]), [], []
    for _ in range(settings["most_steps"]):
        history.append(weights)
        losses.append([np.mean((a @ weights - b) ** 2) for a, b in (*shards, (x, y))])
        weights = weights - settings["learning_rate"] * 2 * x.T @ (x @ weights - y) / len(y)
    return [*history, weights], np.array(losses), settings["threshold"]


def _ends(below):
    """(steps returned, updates made) of a loop that ends where `below` is true, or after the most steps."""
    return (int(np.argmax(below)),) * 2 if np.any(below) else (len(below) - 1, len(below))


def _below(seed, number):
    """Before each step: whether worker 0's own loss, worker 1's and that of all rows are below the threshold."""
    _, losses, threshold = _descent(seed, number)
    return losses < threshold


def _due(seed, number):
    """The steps of one device."""
    return _ends(_below(seed, number)[:, -1])[0]


def _left_first():
    _, losses, threshold = _descent_of(incidents.early_stop(probes.OWN_SEED))
    own = (losses[:, :2] < threshold).argmax(axis=0).tolist()
    return f"worker {int(np.argmin(own))}", "data ended", min(own)


def _steps(run):
    return [worker["steps"] for worker in run]


def _same_steps(run, seed, number):
    steps, wanted = _steps(run), _due(seed, number)
    if steps[0] != steps[1]:
        return f"they take {steps[0]} and {steps[1]}"
    return steps[0] == wanted or f"they take {steps[0]}, {'more' if steps[0] > wanted else 'fewer'} than one device"


def _goes_on(answers):
    """Whether a worker makes more collective calls where more steps may be taken and nothing else is new."""
    return any(
        later - first >= ex12_cases.MORE_STEPS for first, later in zip(answers["calls"][0], answers["calls"][-1])
    )


def _stops(answers, seed):
    if (held := _AS_MANY.holds(answers, seed)) is not True or not _goes_on(answers):
        return held
    settings = ex12_cases.early_stops(seed)
    most, more = (settings[number]["most_steps"] for number in (0, -1))
    calls, later = (max(answers["calls"][number]) for number in (0, -1))
    return f"with most_steps={most} they make {calls} collective calls, with {more} {later}: they don't stop"


def _words(seed, number):
    settings = ex12_cases.early_stops(seed)[number]
    rows = " and ".join(str(len(y)) for _, y in settings["shards"])
    return f"with {rows} rows and a threshold of {settings['threshold']:.3g}"


def _stopped_after(ends):
    """A recogniser: both workers say that they took ends(seed, number)[0] steps, and have the weights after [1]."""

    def fits(run, seed, number):
        steps, updates = ends(seed, number)
        return _steps(run) == [steps] * 2 and runs.close(run, _descent(seed, number)[0][updates])

    return runs.in_every_run(fits, _steps_wrong)


def _steps_wrong(run, seed, number):
    return _steps(run) != [_due(seed, number)] * 2


def _by(decides):
    """A recogniser: the workers' own losses, below the threshold or not, decide together."""
    return _stopped_after(lambda seed, number: _ends(decides(_below(seed, number)[:, :2], axis=1)))


def _mean_of_means(seed, number):
    _, losses, threshold = _descent(seed, number)
    return _ends(losses[:, :2].mean(axis=1) < threshold)


def _trained(seed, number, step_of):
    """Both workers' weights before each step and after the last, where step_of gives their steps.

    step_of  (the gradients of their sums, rows, whether the own loss is below the threshold) -> (workers, 3)
    """
    settings = ex12_cases.early_stops(seed)[number]
    shards = [tuple(map(np.array, shard)) for shard in settings["shards"]]
    weights, history = np.array([settings["first_weights"]] * incidents.WORKERS), []
    for _ in range(settings["most_steps"]):
        history.append(weights)
        errors = [x @ own - y for (x, y), own in zip(shards, weights)]
        sums = np.array([2 * x.T @ error for (x, _), error in zip(shards, errors)])
        below = np.array([np.mean(error**2) < settings["threshold"] for error in errors])
        steps = step_of(sums, np.array([[len(error)] for error in errors]), below[:, None])
        weights = weights - settings["learning_rate"] * steps
    return [*history, weights]


def _trained_by(step_of):
    """A recogniser: each worker's weights are those that it has then after its steps."""

    def fits(run, seed, number):
        history, weights = _trained(seed, number, step_of), runs.weights_of(run)
        return all(
            any(np.allclose(own, history[updates][worker], rtol=runs.CLOSE) for updates in _updates(steps, history))
            for worker, (own, steps) in enumerate(zip(weights, _steps(run)))
        )

    return runs.in_every_run(fits)


def _another_number(run, seed, number):
    """Both workers took as many steps, and have one device's weights after them."""
    (steps, other), (history, *_) = _steps(run), _descent(seed, number)
    return steps == other and any(runs.close(run, history[updates]) for updates in _updates(steps, history))


def _updates(steps, history):
    """The updates that may have been made: one more where the loop may have ended by itself."""
    return (steps, steps + 1) if steps == len(history) - 2 else (steps,)


def _right_weights(run, seed, number):
    return runs.close(run, _descent(seed, number)[0][_due(seed, number)])


def _as_many(run, seed, number):
    """Both return the same number of steps."""
    return len({*_steps(run)}) == 1


def _updated_once_more(run, seed, number):
    """Both return one device's number of steps, and its weights after one update more."""
    wanted = _due(seed, number)
    return _steps(run) == [wanted] * 2 and runs.close(run, _descent(seed, number)[0][wanted + 1])


def _rounded(run, seed, number):
    weights, due = runs.weights_of(run), _descent(seed, number)[0][_due(seed, number)]
    return any(all((np.round(due, places) == own).all() for own in weights) for places in range(1, 6))


def _reads_others(answers, seed):
    """It takes another worker's rows, which are None, for rows."""
    return "NoneType" in answers["stopped"]["error"] and "shards" in answers["stopped"]["line"]


_AS_MANY = runs.each_run("both workers take as many steps as one device", _same_steps, _words)
_STOPPED = {"steps": forms.size, "weights": forms.any_array, str: forms.anything}
EARLY_STOP = question(
    name="q2",
    title="It hangs",
    asks_for=("diagnosis_2", "stop_together"),
    probe=probes.probe_early_stop,
    form={"diagnosis": runs.DIAGNOSIS, "runs": runs.pairs(_STOPPED, RUNS), "calls": runs.pairs(forms.size, RUNS)},
    takes_long=True,
    targets=(
        runs.diagnosed(_left_first),
        Target(_AS_MANY.goal, _stops),
        runs.each_run(
            "their weights are identical, and equal one device's to 0.001%",
            runs.identical_and(lambda seed, number: _descent(seed, number)[0][_due(seed, number)]),
            _words,
        ),
    ),
    recognise={
        "own loss": runs.hangs,
        "one is enough": _by(np.any),
        "all on their own": _by(np.all),
        "mean of means": _stopped_after(_mean_of_means),
        "one step more": _stopped_after(lambda seed, number: (_due(seed, number) + 1,) * 2),
        "updates counted": runs.in_every_run(
            lambda *one: _as_many(*one) and _right_weights(*one), somewhere=_steps_wrong
        ),
        "another number of updates": runs.in_every_run(_another_number, somewhere=_steps_wrong),
        "mean gradients": _trained_by(lambda sums, rows, below: np.mean(sums / rows, axis=0)),
        "each alone": _trained_by(lambda sums, rows, below: sums / rows),
        "zeros of one that is through": _trained_by(
            lambda sums, rows, below: np.sum(sums * ~below, axis=0) / sum(rows)
        ),
        "trains on": lambda answers, seed: _goes_on(answers) and _AS_MANY.holds(answers, seed) is True,
        "rounded": runs.in_every_run(_rounded),
        "others' rows": _reads_others,
        "two sums in one": runs.unlike_sums,
        "update before the stop": runs.in_every_run(_updated_once_more),
        "who waits": runs.other_task(_left_first),
        "another cause": runs.other_cause(_left_first),
        "one update more": runs.said(runs.STEP, lambda step: step == _left_first()[runs.STEP] + 1),
    },
)
