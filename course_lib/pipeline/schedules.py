"""Who works on which micro-batch when: a pipeline's schedule, as data. Standard library only; taught in notebooks/06.

A model is cut into p stages, a batch into m micro-batches. Every stage does the
forward and the backward of each micro-batch, in an order that the schedule fixes.

Sources: Huang and others (2019), "GPipe", arXiv 1811.06965; Narayanan and others
(2019), "PipeDream", SOSP, for one forward, one backward; Narayanan and others (2021),
"Efficient large-scale language model training on GPU clusters", arXiv 2104.04473,
for the form of it that ends each step with nothing in flight, and for interleaving.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from course_lib.errors import CourseError
from course_lib.pipeline.timelines import BACKWARD, FORWARD, Slot, Timeline, Work

__all__ = ["Schedule", "backward", "forward", "gpipe", "interleaved", "naive", "one_forward_one_backward"]


def forward(micro_batch: int, chunk: int = 0) -> Work:
    return Work(FORWARD, micro_batch, chunk)


def backward(micro_batch: int, chunk: int = 0) -> Work:
    return Work(BACKWARD, micro_batch, chunk)


@dataclass(frozen=True, repr=False)
class Schedule:
    """Each stage's order of work; prints as the timeline of equal stages whose backward takes two forwards.

    name           what a reader calls it
    micro_batches  m; each is done once forward and once backward, by every chunk of every stage
    orders         one row of work per stage
    chunks         v; the model is cut into v * p parts, and stage s holds the parts s, p + s, 2p + s, ...
    Raises         CourseError for an order that leaves work out, does some twice, goes
                   backward before forward, or stops because stages wait for each other
    """

    name: str
    micro_batches: int
    orders: tuple[tuple[Work, ...], ...]
    chunks: int = 1

    def __post_init__(self):
        object.__setattr__(self, "orders", tuple(map(tuple, self.orders)))
        _require_counts(self.name, self.stages, self.micro_batches, self.chunks)
        for stage, order in enumerate(self.orders):
            self._require_all_work(stage, order)
        self.timeline()  # finds out whether it ends

    @property
    def stages(self) -> int:
        return len(self.orders)

    def needs(self, stage: int, work: Work) -> list[tuple[int, Work]]:
        """What must have ended before a stage can start a piece of work: (stage, work) pairs."""
        part, last = work.chunk * self.stages + stage, self.chunks * self.stages - 1
        if work.kind == FORWARD:
            return [self._at(FORWARD, part - 1, work)] if part > 0 else []
        own = (stage, forward(work.micro_batch, work.chunk))
        return [own, self._at(BACKWARD, part + 1, work)] if part < last else [own]

    def timeline(self, forward: float | Sequence[float] = 1, backward: float | Sequence[float] = 2) -> Timeline:
        """When each piece of work starts and ends if every stage starts it as soon as it can.

        forward, backward  time of one micro-batch on a whole stage, in any unit; one
                           number for all stages, or one per stage
        Leaves out         the time that activations and gradients travel
        """
        costs = {FORWARD: _per_stage(forward, self.stages), BACKWARD: _per_stage(backward, self.stages)}
        slots: dict[tuple[int, Work], Slot] = {}
        done, free = [0] * self.stages, [0] * self.stages
        while len(slots) < sum(map(len, self.orders)):
            ready = [stage for stage in range(self.stages) if self._ready(stage, done[stage], slots)]
            if not ready:
                raise self._deadlock(done)
            for stage in ready:
                work = self.orders[stage][done[stage]]
                start = max([free[stage], *(slots[need].end for need in self.needs(stage, work))])
                free[stage] = start + costs[work.kind][stage] / self.chunks
                slots[stage, work] = Slot(stage, work, start, free[stage])
                done[stage] += 1
        return Timeline(self.name, tuple(slots.values()))

    def __repr__(self) -> str:
        return repr(self.timeline())

    def _at(self, kind: str, part: int, work: Work) -> tuple[int, Work]:
        return part % self.stages, Work(kind, work.micro_batch, part // self.stages)

    def _ready(self, stage: int, position: int, ended) -> bool:
        order = self.orders[stage]
        return position < len(order) and all(need in ended for need in self.needs(stage, order[position]))

    def _require_all_work(self, stage: int, order: tuple[Work, ...]) -> None:
        where = f"stage {stage} of {self.name!r}"
        if not order:
            raise CourseError(f"{where} has nothing to do: give it layers and work, or use {self.stages - 1} stage(s).")
        wanted = [
            Work(kind, micro_batch, chunk)
            for kind in (FORWARD, BACKWARD)
            for micro_batch in range(self.micro_batches)
            for chunk in range(self.chunks)
        ]
        given = Counter(order)
        strange = f"does {{}}, which is not among {self.micro_batches} micro-batches in {self.chunks} chunk(s)"
        wrong = {
            "does {} twice: every piece of work is done once": [work for work in given if given[work] > 1],
            "leaves out {}: every micro-batch goes forward and backward": [
                work for work in wanted if work not in given
            ],
            strange: sorted(given.keys() - set(wanted)),
        }
        for what, works in wrong.items():
            if works:
                raise CourseError(f"{where} {what.format(works[0])}.")
        for work in wanted:
            own = forward(work.micro_batch, work.chunk)
            if work.kind == BACKWARD and order.index(work) < order.index(own):
                raise CourseError(f"{where} does {work} before {own}, which makes what it needs: put {own} first.")

    def _deadlock(self, done: Sequence[int]) -> CourseError:
        waiting = []
        for stage, position in enumerate(done):
            if position < len(self.orders[stage]):
                work = self.orders[stage][position]
                needs = self.needs(stage, work)
                other, need = next(
                    (other, need) for other, need in needs if need not in self.orders[other][: done[other]]
                )
                waiting.append(f"stage {stage}, before {work}, for {need} of stage {other}")
        return CourseError(f"{self.name!r} never ends, because stages wait for each other: {'; '.join(waiting)}.")


def naive(stages: int, micro_batches: int = 1) -> Schedule:
    """One micro-batch goes all the way forward and back before the next starts: one stage works at a time."""
    order = [work for i in range(micro_batches) for work in (forward(i), backward(i))]
    return _schedule("naive", micro_batches, [order] * stages)


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards (Huang and others, 2019); every stage holds m micro-batches at its peak."""
    order = [*map(forward, range(micro_batches)), *map(backward, range(micro_batches))]
    return _schedule("GPipe", micro_batches, [order] * stages)


def one_forward_one_backward(stages: int, micro_batches: int) -> Schedule:
    """1F1B: after some forwards to fill the pipeline, a forward and a backward in turns.

    Stage s fills with min(m, p - s - 1) forwards and holds min(m, p - s) micro-batches at its peak.
    """
    fills = [min(micro_batches, stages - stage - 1) for stage in range(stages)]
    forwards, backwards = list(map(forward, range(micro_batches))), list(map(backward, range(micro_batches)))
    return _schedule("1F1B", micro_batches, [_in_turns(forwards, backwards, fill) for fill in fills])


def interleaved(stages: int, micro_batches: int, chunks: int) -> Schedule:
    """1F1B over v chunks per stage (Narayanan and others 2021): a bubble v times shorter, over v times the messages.

    Raises  CourseError when the micro-batches are not a multiple of the stages
    """
    _require_counts("interleaved", stages, micro_batches, chunks)
    if micro_batches % stages:
        raise CourseError(
            f"interleaving sends micro-batches round in groups of {stages}, one per stage, and {micro_batches} "
            f"don't divide into such groups: use {stages}, {2 * stages}, ... micro-batches."
        )
    rounds = [
        (group + i, chunk)
        for group in range(0, micro_batches, stages)
        for chunk in range(chunks)
        for i in range(stages)
    ]  # the order in which a stage's forwards come; backwards meet the chunks from the last to the first
    forwards = [forward(i, chunk) for i, chunk in rounds]
    backwards = [backward(i, chunks - 1 - chunk) for i, chunk in rounds]
    after = range(stages - 1, -1, -1)  # how many stages come behind each
    fills = [2 * more + (chunks - 1) * stages for more in after] if chunks > 1 else after
    orders = [_in_turns(forwards, backwards, min(fill, len(forwards))) for fill in fills]
    return _schedule(f"interleaved, {chunks} chunks", micro_batches, orders, chunks)


def _schedule(name: str, micro_batches: int, orders: Sequence[Iterable[Work]], chunks: int = 1) -> Schedule:
    return Schedule(name, micro_batches, tuple(map(tuple, orders)), chunks)


def _in_turns(forwards: list[Work], backwards: list[Work], fill: int) -> list[Work]:
    """`fill` forwards, then forward and backward in turns, then the backwards that are left."""
    turns = [work for pair in zip(forwards[fill:], backwards) for work in pair]
    return [*forwards[:fill], *turns, *backwards[len(forwards) - fill :]]


def _require_counts(name: str, stages: int, micro_batches: int, chunks: int) -> None:
    if min(stages, micro_batches, chunks) < 1:
        raise CourseError(
            f"a schedule has 1 or more of stages, micro-batches and chunks; "
            f"{name!r} has {stages}, {micro_batches} and {chunks}."
        )


def _per_stage(cost: float | Sequence[float], stages: int) -> Sequence[float]:
    costs = list(cost) if hasattr(cost, "__len__") else [cost] * stages
    if len(costs) != stages or min(costs) < 0:
        raise CourseError(
            f"a timeline of {stages} stages needs one cost of 0 or more, or {stages} of them, not {cost}."
        )
    return costs
