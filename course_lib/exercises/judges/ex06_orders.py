"""Exercise 06, q3: the order of work of one stage in 1F1B. Needs NumPy."""

import re

from course_lib import pipeline
from course_lib.errors import CourseError
from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex06 as probes
from course_lib.exercises.question import Target

question = question_maker.of("06_model_parallelism")


def _works(order):
    """["F0", ...] as the library's work."""
    return [{"F": pipeline.forward, "B": pipeline.backward}[one[0]](int(one[1:])) for one in order]


def _scheduled(answers, seed):
    """((stages, micro-batches), the learner's schedule) of each pipeline. Raises CourseError where one cannot work."""
    for (p, m), orders in zip(probes.shapes(seed), answers["orders"], strict=True):
        if len(orders) != p:
            raise CourseError(f"there are orders of {len(orders)} stages, and the pipeline has {p}")
        yield (p, m), pipeline.Schedule("yours", m, tuple(map(_works, orders)))


def _numbers(answers, seed):
    """((stages, micro-batches), the numbers of all micro-batches that are named) of each pipeline."""
    for shape, orders in zip(probes.shapes(seed), answers["orders"], strict=True):
        yield shape, {int(work[1:]) for order in orders for work in order}


def _legal(answers, seed):
    try:
        return bool(list(_scheduled(answers, seed)))
    except CourseError as refused:
        return str(refused)


def _each_timeline(detail):
    """A target over the pipelines: detail(stages, micro-batches, timeline) says what is wrong, or nothing."""

    def holds(answers, seed):
        if _legal(answers, seed) is not True:
            return "not drawn: the orders do not work"
        for (p, m), schedule in _scheduled(answers, seed):
            if wrong := detail(p, m, schedule.timeline()):
                return wrong
        return True

    return holds


def _too_idle(p, m, timeline):
    wanted, got = (p - 1) / (m + p - 1), timeline.bubble
    if got > wanted + 1e-9:
        return f"{m} micro-batches on {p} stages leave {got:.1%} idle, and {wanted:.1%} would do"


def _holds_too_much(p, m, timeline):
    for stage, held in enumerate(timeline.peak_in_flight):
        if held > (allowed := min(m, p - stage)):
            return f"with {m} micro-batches, stage {stage} of {p} holds {held}, and {allowed} would do"


def _forwards_first(answers, seed):
    """((stages, micro-batches), for each stage how many forwards precede its first backward) of each pipeline."""
    for (p, m), orders in zip(probes.shapes(seed), answers["orders"], strict=True):
        kinds = ["".join(work[0] for work in order) for order in orders]
        yield (p, m), [len(one) - len(one.lstrip("F")) for one in kinds]


def _too_many_first(answers, seed):
    """Whether legal orders go forward more often than they must before their first backward, and none too seldom."""
    surplus = [
        count - min(m, p - stage)
        for (p, m), counts in _forwards_first(answers, seed)
        for stage, count in enumerate(counts)
    ]
    return _legal(answers, seed) is True and min(surplus) >= 0 and max(surplus) > 0


def _of_another_pipeline(answers, seed):
    """Whether every stage has the order that is right for it in a pipeline of some number of stages."""
    return all(
        any(order == _one_forward_one_backward(m, ahead) for ahead in range(m + 1))
        for (_, m), orders in zip(probes.shapes(seed), answers["orders"], strict=True)
        for order in orders
    )


def _one_forward_one_backward(m, ahead):
    """The order of a stage that goes forward with so many of m micro-batches before its first turn."""
    turns = [f"{kind}{i - after}" for i in range(ahead, m) for kind, after in (("F", 0), ("B", ahead))]
    return [f"F{i}" for i in range(ahead)] + turns + [f"B{i}" for i in range(m - ahead, m)]


def _is_text_without_zeros_before(work):
    return forms.text.holds(work) and not re.match(r"[FB]0\d", work)


ONE_FORWARD_ONE_BACKWARD = question(
    name="q3",
    title="Write 1F1B",
    asks_for=("order_of",),
    probe=probes.probe_orders,
    form={"orders": [[[forms.Form("a text such as 'F0'", _is_text_without_zeros_before)]]]},
    targets=(
        Target("the stages' orders work together: all work is done once, and no stages wait for each other", _legal),
        Target("a bubble of (p-1)/(m+p-1), if a backward takes two forwards", _each_timeline(_too_idle)),
        Target("stage s holds at most min(m, p-s) micro-batches", _each_timeline(_holds_too_much)),
    ),
    recognise={
        "GPipe": lambda answers, seed: all(counts == [m] * p for (p, m), counts in _forwards_first(answers, seed)),
        "too many first": _too_many_first,
        "numbers from 1": lambda answers, seed: all(
            numbers == {*range(1, m + 1)} for (_, m), numbers in _numbers(answers, seed)
        ),
        "more than there are": lambda answers, seed: all(
            (numbers <= {*range(m)}) == (m >= p - 1) for (p, m), numbers in _numbers(answers, seed)
        ),
        "same for any number": lambda answers, seed: answers["orders"][0] == answers["orders"][1],
        "another number of stages": _of_another_pipeline,
    },
)
