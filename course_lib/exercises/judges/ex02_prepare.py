"""Exercise 02's q3: a run's state and examples, replicated, built and divided. Needs NumPy."""

import math

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.stops import stopped_by
from course_lib.exercises.probes import ex02_prepare as probes
from course_lib.exercises.question import Target

question = question_maker.of("02_data_parallelism")


def _replicated(copies, what, replicas):
    fewest = min(copies)
    return fewest == replicas or f"{what} has {fewest} {'copy' if fewest == 1 else 'copies'}"


def _model_replicated(answers, seed):
    return _replicated(answers["model_copies"], "a weight of yours", answers["replicas"])


def _optimizer_replicated(answers, seed):
    if not answers["optimizer_built"]:
        return "the optimizer has no momentum variables yet"
    held = _replicated(answers["optimizer_copies"], "an optimizer variable", answers["replicas"])
    fits = answers["optimizer_fits"] or min(answers["model_copies"]) < answers["replicas"]  # else it was not tried
    if held is True and not fits:
        return "it is built, and not for the trainable weights of the model that you return"
    return held


def _full(answers, seed):
    """The shapes that a full step should bring."""
    return [[probes.local_batch(seed), 3]] * answers["replicas"]


def _first_local_batch(share):
    """Recognise a first step that brings each replica this share of a global batch."""
    return lambda answers, seed: (
        _first(answers)["shapes"][0]
        == [[int(probes.local_batch(seed) * answers["replicas"] * share), 3]] * answers["replicas"]
    )


def _rows_divided(answers, seed):
    local, replicas, full = probes.local_batch(seed), answers["replicas"], _full(answers, seed)
    for epoch in (*answers["epochs"], answers["few_left"]):
        for number, shapes in enumerate(epoch["shapes"][:-1], 1):
            if shapes != full:
                said = ", ".join(f"({', '.join(map(str, shape))})" for shape in shapes)
                given = f"with a global batch of {local * replicas} on {replicas} replicas"
                return f"{given}, step {number} of an epoch brings x of shape {said}"
    return len(_first(answers)["shapes"]) > 1 or "an epoch of yours has one step at most"


def _wanted(answers, seed):
    return probes.rows(seed, probes.examples_of(seed, answers["replicas"]))


def _every_example(answers, seed):
    wanted = _wanted(answers, seed)
    for number, got in enumerate(epoch["examples"] for epoch in answers["epochs"]):
        if len(got) > 2 * len(wanted):
            return "your data set does not end with its epoch: more than 2 epochs were read"
        if len(got) != len(wanted):
            said = f"{len(got)} of {len(wanted)} examples arrive as rows of a batch"
            return f"in {'a second' if number else 'an'} epoch {said}"
        if sorted(map(tuple, got)) != sorted(map(tuple, wanted)):
            return "they arrive with other values, or not once each"
    for epoch in answers["epochs"]:
        if epoch["dtypes"] != [f"float64 and {probes.LABELS}"]:
            return f"features and labels arrive as {epoch['dtypes'][0]}, and were float64 and {probes.LABELS}"
    if len(answers["epochs"]) != 2:
        return "one epoch was read"
    got, wanted = answers["few_left"]["examples"], _wanted_few(answers, seed)
    if sorted(map(tuple, got)) != sorted(map(tuple, wanted)):
        left = len(wanted) % (probes.local_batch(seed) * answers["replicas"])
        return f"where a step of {left} is left for {answers['replicas']} replicas, {len(got)} of {len(wanted)} arrive"
    return True


def _wanted_few(answers, seed):
    return probes.rows(seed, probes.few_left(seed, answers["replicas"]))


def _few_dropped(answers, seed):
    """In the first data set all examples arrive, and in the second all but those that do not reach every replica."""
    got, wanted = len(answers["few_left"]["examples"]), _wanted_few(answers, seed)
    full = len(wanted) - len(wanted) % (probes.local_batch(seed) * answers["replicas"])
    return (
        got == full
        and len(answers["epochs"]) == 2
        and all(len(epoch["examples"]) == probes.examples_of(seed, answers["replicas"]) for epoch in answers["epochs"])
    )


def _model_outside(answers, seed):
    if "stopped" in answers:  # building the optimizer for such a model under the scope fails with these words
        return "only be passed a variable created in this tf.distribute.Strategy.scope()" in answers["stopped"]["error"]
    return min(answers["model_copies"]) == 1 < answers["replicas"]


def _features_kept(answers, seed):
    """How many of the wanted examples arrive with their features as they were; None unless as many arrive."""
    wanted = _wanted(answers, seed)
    got = {tuple(row[:3]) for row in _first(answers)["examples"]}
    return len(got & {*map(tuple, wanted[:, :3])}) if len(_first(answers)["examples"]) == len(wanted) else None


def _labels_changed(answers, seed):
    wanted = sorted(map(tuple, _wanted(answers, seed)))
    return _features_kept(answers, seed) == len(wanted) and sorted(map(tuple, _first(answers)["examples"])) != wanted


def _short_too_early(answers, seed):
    """All examples arrive, some in full steps, and a step before an epoch's last has fewer rows than others."""
    epochs = [[sum(rows for rows, _ in shapes) for shapes in epoch["shapes"]] for epoch in answers["epochs"]]
    early = any(min(rows[:-1]) < max(rows) for rows in epochs)
    return early and _full(answers, seed) in _first(answers)["shapes"] and _epochs(answers, seed) == 1


def _even_steps(answers, seed):
    """Every example of the second data set arrives, in no more steps than it takes, and none of them is full."""
    rows = [sum(rows for rows, _ in shapes) for shapes in answers["few_left"]["shapes"]]
    examples, batch = len(_wanted_few(answers, seed)), probes.local_batch(seed) * answers["replicas"]
    return sum(rows) == examples and max(rows) < batch and len(rows) == math.ceil(examples / batch)


def _one_in_n(answers, seed):
    examples, replicas = probes.examples_of(seed, answers["replicas"]), answers["replicas"]
    return len(_first(answers)["examples"]) in (examples // replicas, math.ceil(examples / replicas))


def _first(answers):
    return answers["epochs"][0]


def _first_rows(answers):
    return sum(rows for rows, _ in _first(answers)["shapes"][0])


def _epochs(answers, seed):
    return len(_first(answers)["examples"]) / probes.examples_of(seed, answers["replicas"])


_EPOCH = {"shapes": [[[forms.size]]], "examples": [forms.array], "dtypes": [forms.text]}
_PREPARED = {
    "replicas": forms.replicas,
    **dict.fromkeys(("model_copies", "optimizer_copies"), [forms.count]),
    "optimizer_built": forms.flag,
    "optimizer_fits": forms.flag,
    "epochs": [_EPOCH],
    "few_left": _EPOCH,
}
PREPARE = question(
    name="q3",
    title="Everything in its scope",
    asks_for=("prepare",),
    probe=probes.probe_prepare,
    form=_PREPARED,
    targets=(
        Target("every weight has one copy per replica", _model_replicated),
        Target("every optimizer variable has one copy per replica, and the optimizer is built", _optimizer_replicated),
        Target("a step brings every replica global_batch / N rows", _rows_divided),
        Target("every example arrives once in an epoch, unchanged", _every_example),
    ),
    recognise={
        "model outside": _model_outside,
        "optimizer outside": lambda answers, seed: (
            answers["optimizer_built"] and min(answers["optimizer_copies"]) == 1 < answers["replicas"]
        ),
        "optimizer made outside, built inside": stopped_by("_DefaultDistributionStrategy"),
        "optimizer made inside, built outside": stopped_by('Need to be inside "with strategy.scope()"'),
        "optimizer not built": lambda answers, seed: not answers["optimizer_built"],
        "built for other variables": lambda answers, seed: _optimizer_replicated(answers, seed) is not True,
        "global batch to each": _first_local_batch(1),
        "short step too early": _short_too_early,
        "the notebook's replicas": _first_local_batch(1 / 4),
        "even steps": _even_steps,
        "divided twice": lambda answers, seed: (
            _first_rows(answers) in (probes.local_batch(seed), probes.local_batch(seed) * answers["replicas"] // 4)
            and len(_first(answers)["shapes"][0]) == answers["replicas"]
        ),
        "never ends": lambda answers, seed: _epochs(answers, seed) > 2,
        "more than an epoch": lambda answers, seed: 1 < _epochs(answers, seed) <= 2,
        "not distributed": lambda answers, seed: len(_first(answers)["shapes"][0]) == 1 < answers["replicas"],
        "not batched": lambda answers, seed: all(len(shape) == 1 for shape in _first(answers)["shapes"][0]),
        "last batch dropped": lambda answers, seed: (
            len(_first(answers)["examples"])
            == (probes.full_steps(seed) * probes.local_batch(seed) * answers["replicas"])
        ),
        "a small last batch dropped": _few_dropped,
        "the picture's batch": lambda answers, seed: _first_rows(answers) == 64,
        "one example in N": _one_in_n,
        "other numbers": lambda answers, seed: _features_kept(answers, seed) == 0,
        "other labels": _labels_changed,
        "one epoch alone": lambda answers, seed: _epochs(answers, seed) == 1 and not answers["epochs"][1]["examples"],
        "the lesson's pipeline": stopped_by("for the last batch: in shards of"),
        "another order": stopped_by("TypeError: 'SGD' object is not iterable"),
    },
)
