"""Exercise 01, q4: what a trace says a training loop spends most of its time on."""

import functools
import itertools

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex01 as probes
from course_lib.exercises.probes.ex01_traces import KINDS, traces
from course_lib.exercises.question import Target
from course_lib.profiler import covered_seconds

question = question_maker.of("01_one_device")


@functools.lru_cache(maxsize=1)
def _runs(seed):
    """Of each trace its bottleneck, the steps after the first, and the busy events of each kind that begin in them."""
    return [(bottleneck, *_counted(events)) for bottleneck, events in traces(seed)]


def _counted(events):
    _, *steps = sorted((event for event in events if event.name == "train"), key=lambda event: event.start_seconds)

    def inside(event):
        return any(step.start_seconds <= event.start_seconds < step.end_seconds for step in steps)

    return steps, {kind: [event for event in events if event.name == kind and inside(event)] for kind in KINDS}


def _verdicts_right(answers, seed):
    known = [kind for kind, _, _ in _runs(seed)]
    wrong = [said for said, right in zip(answers["kinds"], known, strict=True) if said != right]
    return not wrong or f"{len(wrong)} of {len(known)} wrong; for the first of them you say {wrong[0]!r}"


def _shares_right(answers, seed):
    off = []
    for place, ((kind, steps, busy), own) in enumerate(zip(_runs(seed), answers["shares"], strict=True)):
        wanted = covered_seconds(busy[kind]) / sum(step.duration_seconds for step in steps)
        off.append(abs(own / wanted - 1))
        if place == 0 and not off[0] < 1e-3:
            return f"in a run of {_TINY_TRACE}, your share is {own:.4g}, and {wanted:g} is wanted"
    return bool(max(off) < 1e-3) or f"the worst is off by {max(off):.1%}"


_TINY_TRACE = (
    "two steps, the second 10 s long and with compute in its seconds 4 to 7 on one replica and 6 to 9 on another"
)


def _measured_by(*measures):
    """Recognise answers in which measure(the busy events of a kind) stands for the time that they cover."""

    def fits(measure, answers, seed):
        for (_, steps, busy), *given in zip(_runs(seed), answers["kinds"], answers["shares"], strict=True):
            seconds = {kind: measure(busy[kind]) for kind in busy}
            longest = max(seconds, key=seconds.get)
            share = seconds[longest] / sum(step.duration_seconds for step in steps)
            if given[0] != longest or not np.isclose(given[1], share, rtol=1e-4):
                return False
        return True

    return lambda answers, seed: any(fits(measure, answers, seed) for measure in measures)


def _durations(events):
    return sum(event.duration_seconds for event in events)


def _by_thread(choose, measure):
    """choose(a list with measure(events) of each thread)."""

    def measured(events):
        threads = sorted({event.thread for event in events})
        return choose([measure([event for event in events if event.thread == thread]) for thread in threads])

    return measured


def _first(each):
    return each[0]


def _last(each):
    return each[-1]


def _one_for_all(answers, seed):
    """A replica, their busiest or their mean stands for all of them; the input is measured in any way."""
    ways = [_by_thread(choose, way) for way in (_durations, covered_seconds) for choose in (_first, _last, max)]
    means = [_by_thread(np.mean, way) for way in (_durations, covered_seconds)]

    def measured(of_input, of_replicas):
        return lambda events: (of_replicas if events[0].thread.startswith("replica") else of_input)(events)

    pairs = itertools.product([covered_seconds, _durations, *ways, *means], [*ways, *means])
    return _measured_by(*(measured(*pair) for pair in pairs))(answers, seed)


def _until_the_last_end(events):
    """As covered_seconds, with the end of the event before in place of the furthest end so far."""
    total = reached = 0.0
    for event in sorted(events, key=lambda event: event.start_seconds):
        total += max(0.0, event.end_seconds - max(event.start_seconds, reached))
        reached = event.end_seconds
    return total


def _mean_of_shares(answers, seed):
    for (_, steps, busy), kind, share in zip(_runs(seed), answers["kinds"], answers["shares"], strict=True):
        inside = [[e for e in busy.get(kind, []) if s.start_seconds <= e.start_seconds < s.end_seconds] for s in steps]
        shares = [covered_seconds(own) / step.duration_seconds for own, step in zip(inside, steps)]
        if not np.isclose(share, np.mean(shares), rtol=1e-4):
            return False
    return True


BOTTLENECK = question(
    name="q4",
    title="Find the bottleneck in a trace",
    asks_for=("bottleneck",),
    probe=probes.probe_bottleneck,
    form={"kinds": [forms.text], "shares": [forms.number]},
    targets=(
        Target("the known bottleneck of five distributed runs", _verdicts_right),
        Target("its share of the steps' time, to 0.1%", _shares_right),
    ),
    recognise={
        "replicas added up": _measured_by(_durations, _by_thread(sum, covered_seconds)),
        "one replica for all": _one_for_all,
        "merged with the event before": _measured_by(_until_the_last_end),
        "mean of the steps' shares": _mean_of_shares,
    },
)
