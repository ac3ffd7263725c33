"""Exercise 01, q5: the profile of a distributed run.

Needs NumPy; TensorFlow to compare an answer with known mistakes.
"""

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex01 as probes
from course_lib.exercises.question import Target

question = question_maker.of("01_one_device")


def _both(problem):
    """A target: problem(run, steps, heavy) is None for each of the two runs, or says what is wrong with it."""

    def holds(answers, seed):
        said = [problem(answers[heavy], probes.profiled_steps(seed), heavy) for heavy in probes.HEAVY]
        return said[0] or said[1] or True

    return holds


def _train_marks(run, steps, heavy):
    if run["trains"] != steps:
        return f"{run['trains']} train marks, for {steps} steps"
    calls = run["recorded_calls"]
    return f"{calls} calls of the step are recorded, for {steps} train marks" if calls > steps else None


def _as_many(of, **counts):
    """A target: both runs have marks of this kind, and as many of each."""

    def problem(run, steps, heavy):
        marks = f"{run[f'{of}s']} {of} mark{'s' * (run[f'{of}s'] != 1)}"
        wrong = [f"{run[key]} {what}, for {marks}" for key, what in counts.items() if run[key] != run[f"{of}s"]]
        return wrong[0] if wrong else None if run[f"{of}s"] else f"there is no {of} mark"

    return _both(problem)


def _warm(run, steps, heavy):
    if run["first_call_recorded"]:
        return "the recording has the first call of the step"
    if run["first_wait_recorded"]:
        return "the recording has the wait for the first call's loss"
    if run["recorded_calls"] and not run["first_awaited"]:
        return "the loss of the first call had not been waited for when the second began"
    outside = len(run["batches"]) - run["recorded_calls"]
    return None if outside == 1 else f"{outside} calls of the step are not in the recording"


def _numbered(run, steps, heavy):
    if len(run["numbers"]) != run["trains"]:
        return f"{len(run['numbers'])} of {run['trains']} train marks have a step_num and `_r=1`"
    return None if sorted({*run["numbers"]}) == run["numbers"] else f"their numbers are {run['numbers']}"


def _all_replicas(run, steps, heavy):
    replicas, wanted = run["replicas"], run["wanted_replicas"]
    return None if replicas == wanted else f"{replicas} of {wanted} were at work in your recording"


def _verdict(run, steps, heavy):
    if not run["returned_all"]:
        return "profile_steps returns other events than the recording has"
    if run["trains"] < 2:
        return "a bottleneck needs two train marks or more, because the first is left out"
    return None if run["verdict"] == heavy else f"the run that is heavy in its {heavy} is called {run['verdict']!r}"


def _next_batches_met(run, steps, heavy):
    if run["batches"] == list(range(len(run["batches"]))):
        if run["iterators"] > 1:
            return f"they come from {run['iterators']} iterators, and each of them begins again"
        outdated = run["outdated"]
        return f"when {outdated} of the steps began, a later batch had been pulled too" if outdated else None
    return "a step met something else than a batch" if -1 in run["batches"] else f"they met {run['batches']}"


_PROFILE = {
    **dict.fromkeys(("trains", "inputs", "computes", "inputs_in_train", "computes_in_train"), forms.size),
    **dict.fromkeys(("pulls_in_input", "inputs_in_compute", "inputs_before_compute", "iterators"), forms.size),
    **dict.fromkeys(("numbers", "batches"), [forms.whole]),
    **dict.fromkeys(("calls_in_compute", "waits_in_compute", "recorded_calls", "outdated"), forms.size),
    **dict.fromkeys(("first_call_recorded", "first_wait_recorded", "first_awaited", "returned_all"), forms.flag),
    "wanted_replicas": forms.replicas,
    "replicas": forms.count,
    "verdict": forms.text,
}


def _both_runs(fits):
    return lambda answers, seed: all(fits(run) for run in answers.values())


PROFILE = question(
    name="q5",
    title="Profile a distributed run",
    asks_for=("profile_steps", "bottleneck"),
    probe=probes.probe_profile,
    form=dict.fromkeys(probes.HEAVY, _PROFILE),
    points=2,
    targets=(
        Target("a train mark for each of the steps asked for", _both(_train_marks)),
        Target("the train marks have their numbers, in order, and `_r=1`", _both(_numbered)),
        Target("one warm-up step before the recording, waited for, none of it inside", _both(_warm)),
        Target(
            "in each train mark one input mark around the pull and one compute mark around the step",
            _as_many(
                "train",
                inputs_in_train="train marks hold one input mark",
                computes_in_train="train marks hold one compute mark",
                inputs="input marks are in the recording",
                computes="compute marks are in the recording",
                pulls_in_input="input marks hold the pull of one batch",
                calls_in_compute="compute marks hold one call of the step",
                inputs_before_compute="train marks have their input before their compute",
            ),
        ),
        Target(
            "each compute mark ends when its loss is there",
            _as_many("compute", waits_in_compute="compute marks wait for the loss"),
        ),
        Target("every step, the warm-up too, on the next batch, as it was pulled", _both(_next_batches_met)),
        Target("all replicas at work in the recording", _both(_all_replicas)),
        Target("your q4 names the bottleneck of both runs from it", _both(_verdict)),
    ),
    recognise={
        "first step recorded": _both_runs(lambda run: run["first_call_recorded"]),
        "warm-up's wait recorded": _both_runs(
            lambda run: run["first_wait_recorded"] and not run["first_call_recorded"]
        ),
        "warm-up not waited for": _both_runs(lambda run: run["recorded_calls"] and not run["first_awaited"]),
        "no train mark": _both_runs(lambda run: run["recorded_calls"] and run["trains"] == 0),
        "one mark for all": _both_runs(lambda run: run["trains"] == 1 < run["recorded_calls"]),
        "input not marked": _both_runs(lambda run: run["inputs"] == 0 < run["trains"]),
        "input outside the step": _both_runs(
            lambda run: run["inputs_in_train"] == 0 < min(run["inputs"], run["trains"])
        ),
        "pulled outside its mark": _both_runs(lambda run: run["pulls_in_input"] == 0 < run["inputs_in_train"]),
        "a batch ahead of its mark": _both_runs(
            lambda run: (
                run["outdated"] > 0 == run["trains"] - run["pulls_in_input"]
                and run["batches"] == list(range(len(run["batches"])))
            )
        ),
        "pull inside compute": _both_runs(lambda run: run["inputs_in_compute"] == run["trains"] > 0),
        "two compute marks": _both_runs(lambda run: run["computes"] == 2 * run["trains"] > 0),
        "the step before its pull": _both_runs(
            lambda run: (
                run["inputs_in_compute"] == run["inputs_before_compute"] == 0
                and run["inputs_in_train"] == run["computes_in_train"] == run["trains"] > 0
            )
        ),
        "step not marked": _both_runs(lambda run: run["computes"] == 0 < run["trains"]),
        "not waited for": _both_runs(lambda run: run["calls_in_compute"] > run["waits_in_compute"] == 0),
        "other events returned": _both_runs(lambda run: not run["returned_all"]),
        "a recording for each step": lambda answers, seed: all(
            run["trains"] == run["recorded_calls"] == 1 and len(run["batches"]) == probes.profiled_steps(seed) + 1
            for run in answers.values()
        ),
        "more calls than steps": _both_runs(
            lambda run: not run["first_call_recorded"] and len(run["batches"]) > run["recorded_calls"] + 1 > 1
        ),
        "another number of steps": lambda answers, seed: all(
            run["trains"] == run["recorded_calls"] != probes.profiled_steps(seed) for run in answers.values()
        ),
        "not numbered": _both_runs(lambda run: len(run["numbers"]) == 0 < run["trains"]),
        "the same batch": _both_runs(lambda run: {*run["batches"]} == {0} and len(run["batches"]) > 2),
        "the warm-up's batch again": _both_runs(
            lambda run: run["batches"] == [0, *range(len(run["batches"]) - 1)] and len(run["batches"]) > 2
        ),
        "iterated again": _both_runs(
            lambda run: run["iterators"] == 2 and run["batches"] == list(range(len(run["batches"])))
        ),
        "a part of the batch": _both_runs(lambda run: {*run["batches"]} == {-1}),
        "one number for all": _both_runs(lambda run: len({*run["numbers"]}) == 1 < len(run["numbers"])),
    },
)
