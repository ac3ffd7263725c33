"""Exercise 08, q3: a step on a big batch in the memory of one micro-batch."""

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.numbers import ROUGH
from course_lib.exercises.probes import ex08_memory as memory_probe
from course_lib.exercises.question import Target

question = question_maker.of("08_gradient_accumulation")
CONVOLUTION = 1e-4  # relative: sums over all pixels of a thousand images, in another order
MEMORY_SLACK = 1.15  # of the limit


def _little_memory(answers, seed):
    held = answers["bytes"]
    yours, one, gradients = (f"{held[name] / 2**20:.1f} MiB" for name in ("yours", "one", "gradients"))
    for most, sizes in (("small_rows", memory_probe.SMALL), ("most_rows", memory_probe.step_sizes(seed))):
        if answers[most] > sizes["micro_batch"]:
            return "of {rows} rows, with micro_batch={micro_batch}, you send {sent} through the model at once".format(
                **sizes, sent=answers[most]
            )
    if answers["turns"] > 1:
        return f"in your graph, {answers['turns']} turns of the loop may run at once"
    in_graph = any(in_graph for _, in_graph in _forwards(answers))
    plain = "a plain loop over two micro-batches in a graph" if in_graph else "a plain step on one micro-batch"
    said = f"yours needs {yours}; {plain} needs {one}, and a copy of the gradients {gradients}"
    return held["yours"] <= MEMORY_SLACK * (held["one"] + held["gradients"]) or said


def _changed_as_the_big_batch(answers, seed):
    error, repeated = answers["off"]["right"], answers["repeated_off"]
    if error <= CONVOLUTION < repeated:
        return f"an optimizer's second step, from the same weights, is off by {100 * repeated:,.3g}%"
    return error <= CONVOLUTION or f"off by {100 * error:,.3g}%"


def _one_update(answers, seed):
    return answers["updates"] == 1 or f"it counts {answers['updates']}"


def _mean_loss_of_all(answers, seed):
    sizes = memory_probe.step_sizes(seed)
    error = abs(answers["loss"] / np.average(answers["losses"], weights=_part_rows(**sizes)) - 1)
    return bool(error <= CONVOLUTION) or f"off by {100 * error:,.3g}%"


def _part_rows(micro_batch, rows, seed):
    return [min(micro_batch, rows - at) for at in range(0, rows, micro_batch)]


def _forwards(answers):
    return [(rows, in_graph) for name, rows, in_graph, _ in answers["passes"] if name == "forward"]


def _number_for_size(answers, seed):
    sizes = memory_probe.SMALL, memory_probe.step_sizes(seed)
    small, large = ((one["rows"] // one["micro_batch"], -(-one["rows"] // one["micro_batch"])) for one in sizes)
    return answers["small_rows"] in small and answers["most_rows"] in large


def _parts_rounded_down(answers, seed):
    """Rows // micro_batch parts, as equal as can be."""

    def most(rows, micro_batch, **other):
        return -(-rows // (rows // micro_batch))

    wanted = most(**memory_probe.SMALL), most(**memory_probe.step_sizes(seed))
    return (answers["small_rows"], answers["most_rows"]) == wanted


def _last_one_filled_up(answers, seed):
    parts, forwards = _part_rows(**memory_probe.step_sizes(seed)), [rows for rows, _ in _forwards(answers)]
    return forwards == parts[:1] * len(parts)


def _no_gradient_of_the_loss(answers, seed):
    another = min(answers["off"].values()) > CONVOLUTION
    return answers["updates"] == 1 and another and "backward" not in [name for name, *_ in answers["passes"]]


def _loss_is(judge):
    """Recognise a returned loss by the micro-batches' losses and rows."""

    def recognise(answers, seed):
        wrong = judge(np.array(answers["losses"]), np.array(_part_rows(**memory_probe.step_sizes(seed))))
        return _mean_loss_of_all(answers, seed) is not True and abs(answers["loss"] / wrong - 1) <= CONVOLUTION

    return recognise


def _whole_batch_at_once(answers, seed):
    small, large = memory_probe.SMALL["micro_batch"], memory_probe.step_sizes(seed)["micro_batch"]
    return answers["small_rows"] > small or answers["most_rows"] > large


def _forwards_first(answers, seed):
    """Whether two micro-batches, or more, wait for their backward passes at once; a pass without one doesn't wait."""
    passes = [(name, number) for name, _, in_graph, number in answers["passes"] if not in_graph]
    backward, waiting = {number for name, number in passes if name == "backward"}, set()
    for name, number in passes:
        if name == "backward":
            waiting.discard(number)
        elif number in backward:
            waiting.add(number)
        if len(waiting) > 1:
            return True
    return False


def _graph_too_large(answers, seed):
    at_once = answers["turns"] > 1 or (answers["turns"] == 0 and answers["in_one_graph"] > 1)
    return at_once and _little_memory(answers, seed) is not True


def _right_and_too_large(answers, seed):
    return _changed_as("right")(answers, seed) and _little_memory(answers, seed) is not True


def _changed_as(candidate):
    return lambda answers, seed: answers["updates"] == 1 and answers["off"][candidate] <= CONVOLUTION


BIG_STEP = question(
    name="q3",
    title="A big batch under a memory limit",
    asks_for=("big_step",),
    probe=memory_probe.probe_big_step,
    form={
        "loss": forms.number,
        "losses": [forms.number],
        "passes": [(forms.text, forms.whole, forms.flag, forms.size)],
        "updates": forms.whole,
        "most_rows": forms.size,
        "small_rows": forms.size,
        "later_loss": forms.any_number,
        "repeated_off": forms.any_number,
        "turns": forms.size,
        "in_one_graph": forms.size,
        "bytes": dict.fromkeys(("gradients", "one", "yours"), forms.count),
        "off": {str: forms.distance},
    },
    takes_long=True,
    targets=(
        Target("at its peak, at most 1.15 times one micro-batch and a copy of the gradients", _little_memory),
        Target("the weights change as by one step on the whole batch, to 0.01%", _changed_as_the_big_batch),
        Target("the optimizer counts one update", _one_update),
        Target("the loss returned is the mean over all rows, to 0.01%", _mean_loss_of_all),
    ),
    recognise={
        "number for size": _number_for_size,
        "parts rounded down": _parts_rounded_down,
        "own loss": _no_gradient_of_the_loss,
        "whole batch": _whole_batch_at_once,
        "last one filled up": _last_one_filled_up,
        "forward first": _forwards_first,
        "one graph": _graph_too_large,
        "an update each": lambda answers, seed: answers["updates"] == len(_part_rows(**memory_probe.step_sizes(seed))),
        "too much kept": _right_and_too_large,
        "mean of means": _changed_as("mean of means"),
        "last one dropped": _changed_as("last dropped"),
        "last one alone": _changed_as("last alone"),
        "sum of means": _changed_as("sum of means"),
        "sum over rows": _changed_as("sum over rows"),
        "first one alone": _changed_as("first alone"),
        "last one full": _changed_as("all full"),
        "by hand": lambda answers, seed: answers["off"]["by the rate alone"] <= CONVOLUTION,
        "few digits": lambda answers, seed: CONVOLUTION < answers["off"]["right"] <= ROUGH,
        "one by one": _changed_as("one by one"),
        "kept for the next step": lambda answers, seed: answers["repeated_off"] > CONVOLUTION,
        "loss of the new weights": lambda answers, seed: (
            _mean_loss_of_all(answers, seed) is not True
            and abs(answers["loss"] / answers["later_loss"] - 1) <= CONVOLUTION
        ),
        "last loss": _loss_is(lambda losses, rows: losses[-1]),
        "mean of losses": _loss_is(lambda losses, rows: losses.mean()),
        "sum of losses": _loss_is(lambda losses, rows: losses.sum()),
    },
)
