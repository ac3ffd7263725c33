"""Probe of exercise 06's q5: one stage of a pipeline. Needs NumPy. The inputs are functions of the seed."""

import weakref

import numpy as np

from course_lib.exercises.ask import in_one_line


class Kept:
    """What a stage's backward needs of its forward."""

    def __init__(self, x, y):
        self.x, self.y, self.used = x, y, False


class TanhStage:
    """A stage y = tanh(x @ kernel + bias) that knows which of its forwards are still held; x (r, n), y (r, k).

    work  what its pipeline has received last, such as "B0"; named where backward is given something else
    """

    def __init__(self, kernel: np.ndarray, bias: np.ndarray):
        self.kernel, self.bias = kernel, bias
        self.work, self._made = "", []

    def forward(self, x):
        kept = Kept(x, np.tanh(x @ self.kernel + self.bias))
        self._made.append(weakref.ref(kept))
        return kept.y, kept

    def backward(self, kept, y_gradient):
        if not isinstance(kept, Kept):
            raise TypeError(f"{self.work}: backward is given {kept!r:.40}, and not what forward has given")
        kept.used = True
        by_sum = y_gradient * (1 - kept.y**2)
        return [kept.x.T @ by_sum, by_sum.sum(axis=0)], by_sum @ self.kernel.T

    def held_after_use(self) -> int:
        """How many forwards are held although their backward is done."""
        alive = [kept() for kept in self._made]
        return sum(kept is not None and kept.used for kept in alive)


# Numbers of two digits; B10 goes first, so that an answer that reads only one digit stops where no other mistake does.
LONG = " ".join([f"F{i}" for i in range(12)] + [f"B{i}" for i in (10, *range(10), 11)])
ORDERS = (  # of two stages each, every one legal
    (LONG, LONG),
    ("F0 B0", "F0 B0"),
    ("F0 F1 B0 B1", "F0 F1 B1 B0"),
    ("F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"),
    ("F0 F1 F2 B1 F3 B0 B3 B2", "F1 F0 B1 F2 B0 F3 B3 B2"),
)
AT_ONCE = 3  # the place of the order in which both stages are at work at once
LONGEST_ERROR = 200  # characters


def two_halves(seed: int) -> dict[str, np.ndarray | tuple[np.ndarray, np.ndarray]]:
    """q5's model, float64, with the mean of squares as its loss.

    first, second  kernel (n, h) and bias (h,), kernel (h, k) and bias (k,)
    x, y           (12r, n), (12r, k)
    """
    rng = np.random.default_rng(seed)
    rows, n, h, k = (int(size) for size in rng.integers(1, 6, size=4))
    x, y = rng.normal(size=(12 * rows, n)), rng.normal(size=(12 * rows, k))
    first, second = ((rng.normal(size=(wide, to)), rng.normal(size=to)) for wide, to in ((n, h), (h, k)))
    return {"first": first, "second": second, "x": x, "y": y}


def messages(seed: int, micro_batches: int) -> list[dict[str, list[np.ndarray]]]:
    """For each stage of q5's model what arrives and what leaves, of each micro-batch.

    "F" and "B" arrive, "F out" and "B out" leave; gradients are those of the micro-batch's mean loss.
    """
    one, stages = two_halves(seed), [{name: [] for name in ("F", "B", "F out", "B out")} for _ in range(2)]
    first, second = TanhStage(*one["first"]), TanhStage(*one["second"])
    for x, y in zip(np.split(one["x"], micro_batches), np.split(one["y"], micro_batches)):
        hidden, kept_first = first.forward(x)
        output, kept_second = second.forward(hidden)
        by_output = 2 * (output - y) / y.size
        _, by_hidden = second.backward(kept_second, by_output)
        _, by_input = first.backward(kept_first, by_hidden)
        for stage, values in zip(stages, ((x, by_hidden, hidden, by_input), (hidden, by_output, output, by_hidden))):
            for name, value in zip(stage, values):
                stage[name].append(value)
    return stages


def count(orders: tuple[str, str]) -> int:
    """Of micro-batches."""
    return len(orders[0].split()) // 2


def probe_stage(names, seed):
    """Of each run of a stage: the calls in order, what was sent, the gradients, the most held after use, if trained.

    Each stage has run a step before, of one micro-batch. At last both stages are at work at once; see _at_once.
    """
    runs = []
    for orders in ORDERS:
        weights = [two_halves(seed)[name] for name in ("first", "second")]
        whole = messages(seed, 1)
        for own, order, arriving, before in zip(weights, map(str.split, orders), messages(seed, count(orders)), whole):
            stage = TanhStage(*own)
            _run(names["run_stage"], stage, ["F0", "B0"], before)
            runs.append(_run(names["run_stage"], stage, order, arriving))
    return {"runs": runs, "at_once": _at_once(names["run_stage"], seed)}


def _at_once(run_stage, seed):
    """Of both stages, the second of which runs all its order while the first waits for its first backward's gradient.

    The stages' runs, as alone; or the error that one of them raised.
    """
    stages = [TanhStage(*two_halves(seed)[name]) for name in ("first", "second")]
    (first, second), arriving, inner = map(str.split, ORDERS[AT_ONCE]), messages(seed, count(ORDERS[AT_ONCE])), []

    def meanwhile(work):
        if work[0] == "B" and not inner:
            inner.append(None)  # a learner's error must not begin it again
            inner[0] = _run(run_stage, stages[1], second, arriving[1])

    try:
        return [_run(run_stage, stages[0], first, arriving[0], meanwhile), *inner]
    except Exception as error:
        return in_one_line(type(error).__name__, str(error))[:LONGEST_ERROR]


def _run(run_stage, stage, order, arriving, meanwhile=lambda work: None):
    calls, sent, held = [], {}, []
    weights = stage.kernel.copy(), stage.bias.copy()

    def receive(work):
        calls.append(f"receive {work}")
        held.append(stage.held_after_use())
        stage.work = work
        meanwhile(work)
        return arriving[work[0]][int(work[1:])].copy()

    def send(work, array):
        calls.append(f"send {work}")
        sent[work] = array  # looked at when all is over, as a stage that is slow to receive does
        held.append(stage.held_after_use())

    gradients = run_stage(stage, list(order), receive, send)
    return {
        "calls": calls,
        "sent": {work: np.array(array) for work, array in sent.items()},
        "gradients": [np.asarray(one) for one in gradients],
        "held": max(held, default=0),
        "trained": not all(map(np.array_equal, weights, (stage.kernel, stage.bias))),
    }
