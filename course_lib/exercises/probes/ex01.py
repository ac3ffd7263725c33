"""Probes of exercise 01: a stopwatch, an input pipeline, several steps a call, profiles.

Needs NumPy; TensorFlow for q2, q3 and q5. The inputs are functions of the seed.
"""

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from course_lib.exercises.probes.ex01_marked_run import marked_run, train_numbers
from course_lib.exercises.probes.ex01_stopwatch import AsynchronousStep, stopwatches
from course_lib.exercises.probes.ex01_traces import traces
from course_lib.exercises.probes.state import device_names
from course_lib.profiler import Event

# q1: a stopwatch


def probe_stopwatch(names, seed):
    """The learner's medians and spreads, and how often each step was called, in all and on a device at work."""
    answers = {"medians": [], "spreads": [], "calls": [], "overlapping": []}
    for calls in stopwatches(seed):
        step = AsynchronousStep(calls)
        names["steady_seconds"](step, step.clock, 1, 2)  # nothing of it may show in the next one
        step.begin_again()
        median, spread = names["steady_seconds"](step, step.clock, calls.warmup, calls.repeats)
        for key, value in zip(answers, (float(median), float(spread), step.calls, step.overlapping)):
            answers[key].append(value)
    return answers


# q2: an input pipeline

MANY_EXAMPLES, TINY_EPOCHS = 12_000, 80


def pipeline_sizes(seed: int) -> tuple[int, int]:
    """(examples, batch): more examples than a usual buffer holds, and two or more that fill no batch."""
    rng = np.random.default_rng(seed)
    batch = int(rng.integers(200, 300))
    return batch * (MANY_EXAMPLES // batch) + int(rng.integers(2, batch)), batch


def probe_pipeline(names, seed):
    """Two epochs of the learner's pipeline over numbered examples, and how often each function ran.

    Before it, another data set of its length with the same functions, and the same data set with another `decode`.

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

    numbered, earlier = tf.data.Dataset.range(examples), tf.data.Dataset.range(examples, 2 * examples)
    enough = examples // batch + 2  # a pipeline that repeats itself must come to an end here
    for before in ((earlier, decode, augment), (numbered, tf.identity, tf.identity)):  # nothing of these may show
        for _ in names["pipeline"](*before, batch).take(enough):
            pass
    decode_runs.assign(0)
    augment_runs.assign(0)
    dataset = names["pipeline"](numbered, decode, augment, batch)
    augment_runs_before = int(augment_runs)
    epochs = [[np.asarray(rows) for rows in dataset.take(enough).as_numpy_iterator()] for _ in range(2)]
    first, second = ({int(value): float(value) for rows in epoch for value in np.ravel(rows)} for epoch in epochs)
    both = first.keys() & second.keys()
    five = names["pipeline"](tf.data.Dataset.range(5), tf.identity, tf.identity, 4)
    return {
        "epochs": [[np.atleast_1d(np.floor(rows).astype(int)) for rows in epoch] for epoch in epochs],
        "decode_runs": int(decode_runs),
        "augment_runs": int(augment_runs),
        "augment_runs_before": augment_runs_before,
        "first_of_five": sorted({int(np.ravel([*five.take(3)][0])[0]) for _ in range(TINY_EPOCHS)}),
        "repeated": sum(first[number] == second[number] for number in both) / max(len(both), 1),
        "of_too_few": len([*names["pipeline"](earlier.take(batch - 1), tf.identity, tf.identity, batch).take(3)]),
    }


# q3: several steps a call


def batches_of_numbers(seed: int) -> list[tuple[int, np.ndarray]]:
    """Steps a call k, and more than 2k batches (2,) or (4,) float32 of small whole numbers.

    k is 2, about 100, 1, and some in between.
    """
    rng = np.random.default_rng(seed)
    tiny = [[1, 3], [5, 7], [2, 2], [1, 9], *[[4, 4]] * 12]
    drawn = [(count, rng.integers(1, 100, (3 * count + 10, 4))) for count in (int(rng.integers(90, 111)), 1)]
    some = int(rng.integers(3, 9))
    drawn.append((some, rng.integers(1, 100, (3 * some + 10, 4))))
    return [(count, np.array(batches, "float32")) for count, batches in [(2, tiny), *drawn]]


def probe_multi_step(names, seed):
    """What two calls of the learner's function give, for every number of steps a call, and how the graphs grow with it;
    how often the step's Python runs in a third call, with another iterator.

    `grown` counts the operations that the graph of about 100 steps has more than that of 2; `python_grows` says whether
    Python itself starts more operations or graphs in a call of about 100 steps than in one of 2, and a run's `back`
    whether its graphs call Python.
    """
    runs = [_two_calls(names["make_multi_step"], *case) for case in batches_of_numbers(seed)]
    few, many, *_ = (run.pop("operations") for run in runs)
    started_by_few, started_by_many, *_ = (run.pop("started") for run in runs)
    return {"runs": runs, "grown": max(0, many - few), "python_grows": started_by_many > started_by_few}


def _functions() -> set[str]:
    """The names of the graphs that TensorFlow has as functions now."""
    from tensorflow.python.eager.context import context

    return set(context().list_function_names())


def _calls_python(function: str) -> bool:
    import tensorflow as tf
    from tensorflow.python.eager.context import context

    with contextlib.suppress(tf.errors.NotFoundError):  # collected since it was listed
        return any("PyFunc" in node.op for node in context().get_function_def(function).node_def)
    return False


@contextlib.contextmanager
def _started_by_python() -> Iterator[list[str]]:
    """What Python starts in the block, outside of graphs: operations and tf.functions, a list that grows."""
    from tensorflow.python.framework import op_callbacks  # as TensorFlow's own debugger sees them

    started = []

    def note(operation, inputs, attributes, outputs, op_name=None, graph=None):
        if graph is None:
            started.append(operation)

    op_callbacks.add_op_callback(note)
    try:
        yield started
    finally:
        op_callbacks.remove_op_callback(note)


def _two_calls(make_multi_step, steps_per_call, batches):
    """What they returned, how far the step and the data have come, and how many batches Python pulled."""
    import tensorflow as tf

    steps, total, python_runs, graphs = tf.Variable(0), tf.Variable(0.0), [], set()

    def step(batch):
        python_runs.append(1)
        graph = tf.compat.v1.get_default_graph()
        while hasattr(graph, "outer_graph"):  # a function's: the loop's body, and all that it lies in
            graphs.add(graph)
            graph = graph.outer_graph
        steps.assign_add(1)
        total.assign_add(tf.reduce_sum(batch))
        return tf.reduce_mean(batch)

    dataset = tf.data.Dataset.from_tensor_slices(batches)
    pulled = []

    class Counting(type(iter(dataset))):
        """Counts what Python pulls, and not what a graph does that is traced with it."""

        def __next__(self):
            pulled.extend([1] * tf.executing_eagerly())
            return super().__next__()

        def get_next(self):
            pulled.extend([1] * tf.executing_eagerly())
            return super().get_next()

    iterator, before = Counting(dataset), _functions()
    multi_step = make_multi_step(step, steps_per_call)
    seen = []
    for _ in range(2):
        loss = multi_step(iterator)
        dtype = loss.dtype.name if tf.is_tensor(loss) else ""
        seen.append([float(loss), dtype, int(steps), float(total), len(python_runs)])
    in_python, left = len(pulled), sum(1 for _ in iterator)
    back = any(map(_calls_python, _functions() - before))
    another = Counting(dataset)
    with _started_by_python() as started:  # only now: at the first call a class grader looks whether all is as it was
        multi_step(another)
    keys = ("losses", "dtypes", "steps", "totals", "python_runs")
    return {
        **dict(zip(keys, map(list, zip(*seen)))),
        "batches_left": left,
        "pulled_by_python": in_python,
        "runs_with_another": len(python_runs) - seen[-1][-1],
        "back": back,
        "started": len(started),
        "operations": sum(len(graph.get_operations()) for graph in graphs),
    }


# q4: a trace's bottleneck


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
    if heavy == HEAVY[-1]:  # an earlier recording of the same step
        with tempfile.TemporaryDirectory() as folder:
            names["profile_steps"](step, batches, 1, folder)
        step.begin_again()
    with tempfile.TemporaryDirectory() as folder:
        returned = names["profile_steps"](step, batches, steps, folder)
        events, numbers = profiler.read_trace(folder), train_numbers(folder)

    marks = defaultdict(list)
    for event in events:
        marks[event.name].append(event)

    def within(name, outer, most=1):
        """How many of the outer marks hold one of the inner, or up to `most`, the first step's among them."""
        inners = marks[name] + marks[name.replace("probe: ", "probe: first ")] * name.startswith("probe: ")
        return sum(1 <= sum(_holds(mark, inner) for inner in inners) <= most for mark in marks[outer])

    replicas = {event.name.split("/")[0] for event in events if event.name.startswith("replica_")}
    return {
        **{f"{name}s": len(marks[name]) for name in ("train", "input", "compute")},
        "inputs_in_train": within("input", "train"),
        "computes_in_train": within("compute", "train"),
        "pulls_in_input": within("probe: pull", "input"),
        "inputs_in_compute": within("input", "compute"),
        "inputs_before_compute": sum(_in_turn(mark, marks["input"], marks["compute"]) for mark in marks["train"]),
        "calls_in_compute": within("probe: call", "compute"),
        "waits_in_compute": within("probe: wait", "compute", most=len(events)),  # a loss may be read again
        "recorded_calls": len(marks["probe: call"]),
        "first_call_recorded": bool(marks["probe: first call"]),
        "first_wait_recorded": bool(marks["probe: first wait"]),
        "first_awaited": step.first_awaited,
        "batches": batches.numbers_of(step.met),
        "iterators": batches.iterators_of(step.met),
        "outdated": step.outdated,
        "numbers": [number for number, root in numbers if root == 1],
        "wanted_replicas": len(device_names()),
        "replicas": 1 + len(replicas),  # TensorFlow gives the first replica's operations no prefix
        "returned_all": len(list(returned)) == len(events),
        # q4 leaves the first step out, so with one mark alone there is nothing to ask it.
        "verdict": str(names["bottleneck"](list(returned))[0]) if len(marks["train"]) > 1 else "",
    }


def _in_turn(train: Event, inputs: list[Event], computes: list[Event]) -> bool:
    """Whether a train mark's input marks have ended when its first compute mark begins."""
    ends = [mark.end_seconds for mark in inputs if _holds(train, mark)]
    begins = [mark.start_seconds for mark in computes if _holds(train, mark)]
    return bool(ends and begins) and max(ends) <= min(begins)


def _holds(outer: Event, inner: Event) -> bool:
    return outer.start_seconds <= inner.start_seconds and inner.end_seconds <= outer.end_seconds
