"""The probe of exercise 10's q4: recorded profiles.

Needs NumPy. The inputs are functions of the seed; the profiles were recorded once.
"""

from dataclasses import replace

import numpy as np

from course_lib.exercises.given import recordings
from course_lib.exercises.probes.cases import shuffled
from course_lib.profiler import Event

KINDS = ("input", "compute", "communication")


def profiles(seed: int) -> list[tuple[str, list[Event]]]:
    """(bottleneck, events): some steps of each recording, faster or slower, with work between them and across."""
    rng = np.random.default_rng(seed)
    made = [(kind, _cut(rng, events)) for kind, events in recordings.by_bottleneck().items()]
    return shuffled(rng, made)


def _cut(rng, events) -> list[Event]:
    trains = sorted((event for event in events if event.name == "train"), key=lambda event: event.start_seconds)
    count, speed = int(rng.integers(6, 11)), rng.uniform(0.4, 3)
    first = int(rng.integers(0, len(trains) - count + 1))
    moved, pause = [], 0.0
    for train in trains[first : first + count]:
        for event in events:
            if train.start_seconds <= event.start_seconds < train.end_seconds:
                # What runs on into the pause, such as an input that works ahead, is cut off at the step's end.
                end = min(event.end_seconds, train.end_seconds)
                start, duration = event.start_seconds, end - event.start_seconds
                moved.append(replace(event, start_seconds=speed * (start + pause), duration_seconds=speed * duration))
        idle = rng.uniform(0.2, 1.0) * train.duration_seconds
        # An input's thread goes on while the steps pause.
        begins, lasts = speed * (train.end_seconds + pause + idle / 4), speed * idle / 2
        ahead = replace(train, start_seconds=begins, duration_seconds=lasts)
        moved.append(replace(ahead, name="Iterator::Prefetch", thread="tf_data_private_threadpool"))
        work = [*_work_inside(rng, train), *_work_between(rng, train, idle)]
        moved += [
            Event(name, train.plane, thread, speed * (train.start_seconds + pause + start), speed * duration)
            for name, thread, start, duration in work
        ]
        pause += idle
    return shuffled(rng, moved)


def _work_inside(rng, train) -> list[tuple[str, str, float, float]]:
    """Operations that only their type tells apart: (name, thread, seconds from the step's start on, duration)."""
    kinds = (
        ("sgd/CollectiveReduceV2/truediv:RealDiv", "tf_Compute/0"),  # a sum's name, and not its type
        ("metrics/Mean:Mean", "collective_ops/2"),
        ("metrics/total:CollectiveReduceV2", "tf_Compute/0"),
        ("rescaling/Mul:Mul", "tf_data_iterator_get_next/1"),  # the input's, on another thread of its own
        ("optimizer/Sub:Sub", "python"),
        ("tower:0/grad:CollectiveReduceV2", "tf_Compute/0"),  # the type is what follows the last colon
        ("loss:CollectiveReduceV2/scale:Mul", "tf_Compute/1"),
        ("shards/CollectiveGatherV2:CollectiveGatherV2", "tf_Compute/0"),  # of another type
        ("grads/sum:NcclCollectiveReduceV2", "tf_Compute/1"),
        ("metrics/Sum:Sum", "worker_tf_data/0"),  # a name that does not begin with tf_data
        ("session_run", "tf_Compute/0"),  # no operation
        ("CollectiveReduceV2", "tf_Compute/0"),  # nor this, without a colon
    )
    starts = 0.03 + 0.085 * np.arange(len(kinds)) + rng.uniform(0.0, 0.05, len(kinds))
    lasts = rng.uniform(0.01, 0.03, len(kinds))
    places = zip(kinds, starts * train.duration_seconds, lasts * train.duration_seconds, strict=True)
    return [(*kind, float(start), float(duration)) for kind, start, duration in places]


def _work_between(rng, train, idle) -> list[tuple[str, str, float, float]]:
    """Work and sums in the pause after a step: what the step began, what runs on into the next one, and both."""
    step, late, early = train.duration_seconds, *(rng.uniform(0.01, 0.03, 2) * train.duration_seconds)
    spans = (
        ("checkpoint/Identity:Identity", -late, late + rng.uniform(0.1, 0.2) * idle),
        ("copies/Identity:Identity", -2 * late, 2 * late + idle + 1.5 * early),
        ("evaluation/MatMul:MatMul", rng.uniform(0.25, 0.3) * idle, rng.uniform(0.1, 0.3) * idle),
        ("evaluation/CollectiveReduceV2:CollectiveReduceV2", 0.7 * idle, rng.uniform(0.1, 0.2) * idle),
        ("summary/Cast:Cast", 0.95 * idle, 0.05 * idle + early),
        ("summary/CollectiveReduceV2:CollectiveReduceV2", 0.95 * idle, 0.05 * idle + 2 * early),
    )
    return [(name, "tf_Compute/0", float(step + start), float(duration)) for name, start, duration in spans]


def probe_bottleneck(names, seed):
    """The learner's verdict and shares for every profile."""
    found = [names["bottleneck"](list(events)) for _, events in profiles(seed)]
    return {
        "kinds": [str(kind) for kind, _ in found],
        "shares": [[float(shares[kind]) for kind in KINDS] for _, shares in found],
    }
