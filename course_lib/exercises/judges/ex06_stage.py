"""Exercise 06, q5: one stage of a pipeline. Needs NumPy."""

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.numbers import ROUGH, off
from course_lib.exercises.probes import ex06_stage as probes
from course_lib.exercises.question import Target

question = question_maker.of("06_model_parallelism")
FLOAT32 = 1e-5  # relative: sums of a dozen products in float32


def _stage_facts(seed):
    """(order, what arrives and leaves, the weights' gradients of the batch's mean loss) of each of the probe's runs."""
    one, facts = probes.two_halves(seed), []
    for orders in probes.ORDERS:
        stages = probes.messages(seed, probes.count(orders))
        for name, order, stage in zip(("first", "second"), orders, stages):
            whole = probes.TanhStage(*one[name])
            _, kept = whole.forward(np.concatenate(stage["F"]))
            upstream = np.concatenate(stage["B"]) / len(stage["B"])  # the batch's mean loss is the mean of theirs
            gradients, _ = whole.backward(kept, upstream)
            facts.append((order.split(), stage, gradients))
    return facts


def _each_run(detail):
    """A target over the runs, the short ones first: detail(run, order, messages, gradients) gives a line."""

    def holds(answers, seed):
        runs = enumerate(zip(answers["runs"], _stage_facts(seed), strict=True))
        for number, (run, facts) in sorted(runs, key=lambda one: len(one[1][1][0])):
            if wrong := detail(run, *facts):
                return f"stage {number % 2}, {' '.join(facts[0])}: {wrong}"
        return _both_at_once(detail, answers, seed)

    return holds


def _both_at_once(detail, answers, seed):
    """True, or what is wrong while the second stage runs inside the first one's receive."""
    runs, place = answers["at_once"], 2 * probes.AT_ONCE
    if isinstance(runs, str):
        return f"when stage 1 works while stage 0 waits for a gradient: {runs}"
    for number, (run, facts) in enumerate(zip(runs, _stage_facts(seed)[place : place + 2], strict=True)):
        if wrong := detail(run, *facts):
            return f"when stage 1 works while stage 0 waits for a gradient, stage {number}: {wrong}"
    return True


def _shared(answers, seed):
    """Whether all is right with one stage at a time, and something is wrong with two."""
    details = (_other_calls, _sent_wrong, _gradient_wrong, _kept_too_long)
    runs = list(zip(answers["runs"], _stage_facts(seed), strict=True))
    alone = not any(detail(run, *facts) for detail in details for run, facts in runs)
    return alone and any(_both_at_once(detail, answers, seed) is not True for detail in details)


def _other_calls(run, order, stage, gradients):
    wanted = [f"{call} {work}" for work in order for call in ("receive", "send")]
    return "" if run["calls"] == wanted else f"yours calls {', '.join(run['calls'][:6])} ..."


def _sent_wrong(run, order, stage, gradients):
    for work in order:
        if work not in run["sent"]:
            return f"{work} sends nothing"
        wanted = stage[f"{work[0]} out"][int(work[1:])]
        if run["sent"][work].shape != wanted.shape:
            return f"{work} sends an array of shape {run['sent'][work].shape}, and {wanted.shape} is wanted"
        if not (far := off(run["sent"][work], wanted)) <= FLOAT32:
            return f"{work} sends what is off by {100 * far:,.4g}%"
    return ""


def _gradient_wrong(run, order, stage, gradients, at_most_off=FLOAT32):
    if run["trained"]:
        return "your call changes the stage's weights"
    if len(run["gradients"]) != len(gradients):
        return f"you return {len(run['gradients'])} gradients for {len(gradients)} arrays of weights"
    for one, wanted in zip(run["gradients"], gradients):
        if one.shape != wanted.shape:
            return f"a gradient has the shape {one.shape}, and its weights {wanted.shape}"
    far = max(map(off, run["gradients"], gradients))
    return "" if far <= at_most_off else f"off by {100 * far:,.4g}%"


def _nearly_right(run, order, stage, gradients):
    return _gradient_wrong(run, order, stage, gradients, ROUGH)


def _few_digits(answers, seed):
    """Whether the gradients are right to half precision, and no better."""
    nearly, right = (_each_run(one)(answers, seed) is True for one in (_nearly_right, _gradient_wrong))
    return nearly and not right


def _sent_late(answers, seed):
    """Whether all is right but that something is sent only when the next work has been received."""
    for run, (order, _, _) in zip(answers["runs"], _stage_facts(seed), strict=True):
        for call in ("receive", "send"):
            if [one for one in run["calls"] if one.startswith(call)] != [f"{call} {work}" for work in order]:
                return False
    others = (_sent_wrong, _gradient_wrong)
    return _each_run(_other_calls)(answers, seed) is not True and all(
        _each_run(one)(answers, seed) is True for one in others
    )


def _numbers_of_gradients(count):
    """Recognise count(micro-batches) gradients of every run."""
    return lambda answers, seed: all(
        len(run["gradients"]) == count(len(order) // 2)
        for run, (order, _, _) in zip(answers["runs"], _stage_facts(seed), strict=True)
    )


def _backwards_in_turn(answers, seed):
    """Whether the backwards of every run are those of micro-batches 0, 1, 2 and so on, whatever its order says."""
    for run in answers["runs"]:
        backwards = [call.removeprefix("receive ") for call in run["calls"] if call.startswith("receive B")]
        if not backwards or backwards != [f"B{number}" for number in range(len(backwards))]:
            return False
    return True


def _all_but_the_memory(answers, seed):
    return all(_each_run(one)(answers, seed) is True for one in (_other_calls, _sent_wrong, _gradient_wrong))


def _forwards_before_all(answers, seed):
    """Whether every run goes forward with all micro-batches before the first backward, whatever its order says."""
    for run in answers["runs"]:
        kinds = "".join(call.removeprefix("receive ")[0] for call in run["calls"][::2])
        if kinds != "".join(sorted(kinds, reverse=True)) or not all(
            kinds.count(kind) == len(kinds) / 2 for kind in "FB"
        ):
            return False
    return True


def _one_digit(answers, seed):
    """Whether a backward of the long order did not find what micro-batch 1 kept, which 10 and 11 took away."""
    error = answers.get("stopped", {}).get("error", "")
    return error in ("KeyError: 1", "KeyError: '1'") or error.startswith("TypeError: B1: backward is given None,")


def _stages(seed):
    """A new stage for each of the probe's runs."""
    return [probes.TanhStage(*probes.two_halves(seed)[name]) for _ in probes.ORDERS for name in ("first", "second")]


def _taken(choose):
    """Recognise backwards that each use what choose(numbers whose forward is done and backward is not) forward kept."""

    def recognise(answers, seed):
        for stage, run, (order, messages, _) in zip(_stages(seed), answers["runs"], _stage_facts(seed), strict=True):
            held = {}
            for work in order:
                number = int(work[1:])
                if work[0] == "F":
                    _, held[number] = stage.forward(messages["F"][number])
                else:
                    _, sent = stage.backward(held.pop(choose(list(held))), messages["B"][number])
                    if off(run["sent"][work], sent) > FLOAT32:
                        return False
        return True

    return recognise


def _last_alone(answers, seed):
    """Each run's gradient is its last micro-batch's, divided by their number or not."""
    for stage, run, (order, messages, _) in zip(_stages(seed), answers["runs"], _stage_facts(seed), strict=True):
        number = int(order[-1][1:])
        _, kept = stage.forward(messages["F"][number])
        last, _ = stage.backward(kept, messages["B"][number])
        divided = [2 * one / len(order) for one in last]
        if all(_gradient_wrong(run, order, messages, gradients) for gradients in (last, divided)):
            return False
    return True


def _overwritten(answers, seed):
    """Whether all is right but what was sent, and what each kind of work has sent is what the last one of it sends."""
    for run, (order, messages, gradients) in zip(answers["runs"], _stage_facts(seed), strict=True):
        if _other_calls(run, order, messages, gradients) or _gradient_wrong(run, order, messages, gradients):
            return False
        for kind in "FB":
            works = [work for work in order if work[0] == kind]
            own = {work: messages[f"{kind} out"][int(work[1:])] for work in works}
            if not any(
                all(off(run["sent"][work], wanted[work]) <= FLOAT32 for work in works)
                for wanted in (own, dict.fromkeys(works, own[works[-1]]))
            ):
                return False
    return _each_run(_sent_wrong)(answers, seed) is not True


def _kept_too_long(run, order, stage, gradients):
    return f"{run['held']} are" if run["held"] > 1 else ""


_STAGE_RUN = {
    "calls": [forms.text],
    "sent": {str: forms.array},
    "gradients": [forms.array],
    "held": forms.size,
    "trained": forms.flag,
}
ONE_STAGE = question(
    name="q5",
    title="Run one stage",
    asks_for=("run_stage",),
    probe=probes.probe_stage,
    form={"runs": [_STAGE_RUN], "at_once": forms.either([_STAGE_RUN], forms.text)},
    targets=(
        Target("each piece of work in the order given: received, computed, sent", _each_run(_other_calls)),
        Target("what is sent equals one device's, micro-batch by micro-batch, to 0.001%", _each_run(_sent_wrong)),
        Target("the gradients equal those of the whole batch's mean loss, to 0.001%", _each_run(_gradient_wrong)),
        Target("of the micro-batches that have gone backward, at most one is still held", _each_run(_kept_too_long)),
    ),
    recognise={
        "order ignored": _forwards_before_all,
        "one digit": _one_digit,
        "oldest first": _taken(lambda numbers: numbers[0]),
        "newest first": _taken(lambda numbers: numbers[-1]),
        "last micro-batch alone": _last_alone,
        "first weights alone": _numbers_of_gradients(lambda micro_batches: 1),
        "lists joined": _numbers_of_gradients(lambda micro_batches: 2 * micro_batches),
        "backwards in turn": _backwards_in_turn,
        "let go too late": _all_but_the_memory,
        "sent late": _sent_late,
        "overwritten": _overwritten,
        "shared by the stages": _shared,
        "trained": lambda answers, seed: any(run["trained"] for run in answers["runs"]),
        "few digits": _few_digits,
    },
)
