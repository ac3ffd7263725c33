"""Probes of exercise 01: a stopwatch, an input pipeline, several steps a call, profiles.

Needs NumPy; TensorFlow for q2, q3 and q5. The inputs are functions of the seed.
"""

import tempfile
from dataclasses import dataclass

import numpy as np

from course_lib.exercises.probes.cases import shuffled
from course_lib.exercises.probes.ex01_marked_run import marked_run
from course_lib.exercises.probes.state import device_names
from course_lib.profiler import Event

# q1: a stopwatch


@dataclass(frozen=True)
class Durations:
    """How long a step takes, call by call.

    launch_seconds   until `step()` returns
    compute_seconds  until its result is there, counted from its return
    """

    launch_seconds: np.ndarray
    compute_seconds: np.ndarray
    warmup: int

    @property
    def repeats(self) -> int:
        return len(self.launch_seconds) - self.warmup


def durations(seed: int) -> Durations:
    """A slow first call, a slowish warm-up, then a steady state with a few very slow calls."""
    rng = np.random.default_rng(seed)
    warmup, repeats = int(rng.integers(2, 6)), int(rng.integers(15, 30))
    compute = rng.uniform(0.8, 1.2, warmup + repeats) * 0.01
    compute[:warmup] *= rng.uniform(2, 4, warmup)
    compute[0] = rng.uniform(1, 2)
    compute[warmup + rng.choice(repeats, 3, replace=False)] *= rng.uniform(10, 30)
    return Durations(rng.uniform(0.8, 1.2, warmup + repeats) * 0.001, compute, warmup)


class AsynchronousStep:
    """A step on a device, and the clock, which only the step's calls and waits move.

    A call returns before its result is there; `numpy()` waits for it. The device
    computes one step after the other.
    """

    def __init__(self, calls: Durations):
        self._durations, self._now, self._free_at = calls, 0.0, 0.0
        self.calls = 0

    def __call__(self):
        number = self.calls % len(self._durations.launch_seconds)
        self.calls += 1
        self._now += self._durations.launch_seconds[number]
        self._free_at = max(self._free_at, self._now) + self._durations.compute_seconds[number]
        return _Pending(self, self._free_at)

    def clock(self) -> float:
        return self._now

    def wait_until(self, seconds: float) -> None:
        self._now = max(self._now, seconds)


@dataclass(frozen=True)
class _Pending:
    step: AsynchronousStep
    ready_at: float

    def numpy(self) -> float:
        self.step.wait_until(self.ready_at)
        return 0.0


def probe_stopwatch(names, seed):
    """The learner's median and spread, and how often the step was called."""
    calls = durations(seed)
    step = AsynchronousStep(calls)
    median, spread = names["steady_seconds"](step, step.clock, calls.warmup, calls.repeats)
    return {"median": float(median), "spread": float(spread), "calls": step.calls}


# q2: an input pipeline


def pipeline_sizes(seed: int) -> tuple[int, int]:
    """(examples, batch): the batch does not divide the examples."""
    rng = np.random.default_rng(seed)
    batch = int(rng.integers(16, 33))
    return batch * int(rng.integers(9, 14)) + int(rng.integers(1, batch)), batch


def probe_pipeline(names, seed):
    """Two epochs of the learner's pipeline over numbered examples, and how often each function ran.

    `decode` turns number n into n + 0.25; `augment` adds a random part below 0.5, so
    that floor() gives back the number and what is left tells one augmentation from another.
    """
    import tensorflow as tf

    examples, batch = pipeline_sizes(seed)
    decode_runs, augment_runs = tf.Variable(0), tf.Variable(0)

    def decode(number):
        decode_runs.assign_add(1)
        return tf.cast(number, tf.float32) + 0.25

    def augment(decoded):
        # Stateless: a stateful draw repeats itself in every epoch once somebody has set TensorFlow's global seed.
        draw = tf.stack([seed % 2**31, augment_runs.assign_add(1)])
        return decoded + tf.random.stateless_uniform(tf.shape(decoded), draw, 0.0, 0.5)

    dataset = names["pipeline"](tf.data.Dataset.range(examples), decode, augment, batch)
    enough = examples // batch + 2  # a pipeline that repeats itself must come to an end here
    epochs = [[np.asarray(rows) for rows in dataset.take(enough).as_numpy_iterator()] for _ in range(2)]
    first, second = ({int(value): float(value) for rows in epoch for value in np.ravel(rows)} for epoch in epochs)
    both = first.keys() & second.keys()
    return {
        "epochs": [[np.floor(rows).astype(int) for rows in epoch] for epoch in epochs],
        "decode_runs": int(decode_runs),
        "augment_runs": int(augment_runs),
        "repeated": sum(first[number] == second[number] for number in both) / max(len(both), 1),
    }


# q3: several steps a call


def batches_of_numbers(seed: int) -> tuple[int, np.ndarray]:
    """Steps a call k, and batches (3k, 4) float32 of small whole numbers."""
    rng = np.random.default_rng(seed)
    steps_per_call = int(rng.integers(5, 9))
    return steps_per_call, rng.integers(1, 100, (3 * steps_per_call, 4)).astype("float32")


def probe_multi_step(names, seed):
    """Two calls of the learner's function: what they returned, and how far the step and the data have come."""
    import tensorflow as tf

    steps_per_call, batches = batches_of_numbers(seed)
    steps, total, python_runs = tf.Variable(0), tf.Variable(0.0), []

    def step(batch):
        python_runs.append(1)
        steps.assign_add(1)
        total.assign_add(tf.reduce_sum(batch))
        return tf.reduce_mean(batch)

    iterator = iter(tf.data.Dataset.from_tensor_slices(batches))
    multi_step = names["make_multi_step"](step, steps_per_call)
    seen = [[float(multi_step(iterator)), int(steps), float(total), len(python_runs)] for _ in range(2)]
    left = sum(1 for _ in iterator)
    losses, step_counts, totals, runs = map(list, zip(*seen, strict=True))
    return {"losses": losses, "steps": step_counts, "totals": totals, "python_runs": runs, "batches_left": left}


# q4: a trace's bottleneck

KINDS = ("input", "compute", "all-reduce")
REPLICAS = 4


def traces(seed: int) -> list[tuple[str, list[Event]]]:
    """Distributed runs whose bottleneck is known, one per kind and trap: (bottleneck, events).

    Wall-clock seconds per step. `pieces` cuts a replica's compute
    into that many events; `before` is an input event ahead of the first step; `first`
    is how many times as long the first step computes.
    """
    rng = np.random.default_rng(seed)
    return [
        ("input", _trace(rng, input=5.0, compute=3.0, all_reduce=1.0)),
        ("compute", _trace(rng, input=3.0, compute=4.5, all_reduce=1.0, pieces=6)),
        ("all-reduce", _trace(rng, input=2.0, compute=3.0, all_reduce=5.0, first=60)),
        ("compute", _trace(rng, input=2.0, compute=5.0, all_reduce=3.0, before=300.0)),
    ]


def _trace(rng, input, compute, all_reduce, pieces=1, before=0.0, first=1):
    """Events of a run in no particular order; the parts of a step follow each other."""
    now, events = 1.0, []

    def on_python(name, seconds, start):
        events.append(Event(name, "/host:CPU", "python", start, seconds))

    def on_replicas(name, seconds, start, pieces=1):
        for replica in range(REPLICAS):
            thread, piece = f"replica {replica}", seconds / pieces
            for number in range(pieces):
                events.append(Event(name, "/host:CPU", thread, start + number * piece, piece))
                events.append(Event("MatMul", "/host:CPU", thread, start + (number + 0.25) * piece, piece / 2))

    if before:
        on_python("input", before, now)
        now += before + 0.1
    for number in range(int(rng.integers(4, 8))):
        begin, jitter = now, rng.uniform(0.95, 1.05, 3)
        slow = first if number == 0 else 1
        on_python("input", input * jitter[0], now)
        now += input * jitter[0] + 0.01
        on_replicas("compute", compute * jitter[1] * slow, now, pieces)
        now += compute * jitter[1] * slow + 0.01
        on_replicas("all-reduce", all_reduce * jitter[2], now)
        now += all_reduce * jitter[2] + 0.01
        on_python("train", now - begin, begin)
        now += 0.05
    return shuffled(rng, events)


def probe_bottleneck(names, seed):
    """The learner's verdict and share for every trace."""
    verdicts = [names["bottleneck"](list(events)) for _, events in traces(seed)]
    return {"kinds": [str(kind) for kind, _ in verdicts], "shares": [float(share) for _, share in verdicts]}


# q5: the profile of a distributed run

HEAVY = ("input", "compute")


def profiled_steps(seed: int) -> int:
    """Steps that q5 asks for; the data set has more."""
    return int(np.random.default_rng(seed).integers(3, 6))


def probe_profile(names, seed):
    """Two distributed runs, one heavy in its input and one in its step, recorded by the learner."""
    return {heavy: _recorded(names, heavy, profiled_steps(seed)) for heavy in HEAVY}


def _recorded(names, heavy: str, steps: int) -> dict[str, object]:
    from course_lib import profiler

    step, batches = marked_run(heavy)
    with tempfile.TemporaryDirectory() as folder:
        returned = names["profile_steps"](step, batches, steps, folder)
        events = profiler.read_trace(folder)

    def marks(name):
        return [event for event in events if event.name == name]

    def within(name, outer):
        """How many of the outer marks hold exactly one of the inner."""
        return sum(sum(_holds(mark, inner) for inner in marks(name)) == 1 for mark in marks(outer))

    replicas = {event.name.split("/")[0] for event in events if event.name.startswith("replica_")}
    return {
        "trains": len(marks("train")),
        "inputs_in_train": within("input", "train"),
        "computes_in_train": within("compute", "train"),
        "pulls_in_input": within("probe: pull", "input"),
        "calls_in_compute": within("probe: call", "compute"),
        "waits_in_compute": within("probe: wait", "compute"),
        "recorded_calls": len(marks("probe: call")),
        "first_recorded": bool(marks("probe: first call")),
        "wanted_replicas": len(device_names()),
        "replicas": 1 + len(replicas),  # TensorFlow gives the first replica's operations no prefix
        "returned_all": len(list(returned)) == len(events),
        # q4 leaves the first step out, so with one mark alone there is nothing to ask it.
        "verdict": str(names["bottleneck"](list(returned))[0]) if len(marks("train")) > 1 else "",
    }


def _holds(outer: Event, inner: Event) -> bool:
    return outer.start_seconds <= inner.start_seconds and inner.end_seconds <= outer.end_seconds
