"""Every layout of a model on a cluster: which fit, which is fastest, and why the next one loses.

Standard library only; taught in notebooks/10.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from course_lib.errors import CourseError
from course_lib.planner.blocks import Chain
from course_lib.planner.layout import RECOMPUTE, ZERO, Layout
from course_lib.planner.prediction import Prediction, in_bytes, in_seconds, predict
from course_lib.planner.rented_chips import TPU, Cluster
from course_lib.planner.transformer import Transformer
from course_lib.table import Table

SHOWN = 8
IN_A_PIPELINE = (0, 1)  # DeepSpeed and Megatron refuse the other ZeRO stages there
CHUNKS = (1, 2, 4)  # of a pipeline stage
ALIKE = 0.02  # times that differ by less count as equal, and the simpler layout goes first


@dataclass(frozen=True, repr=False)
class Search:
    """Predictions of all layouts that were tried, shown as a table with the reason.

    ranked   those that fit, by time; within 2% the simpler first
    refused  those that do not, by memory
    """

    ranked: tuple[Prediction, ...]
    refused: tuple[Prediction, ...]

    @property
    def best(self) -> Prediction | None:
        return self.ranked[0] if self.ranked else None

    @property
    def runner_up(self) -> Prediction | None:
        """The fastest that splits the model in another way than the best."""
        others = (other for other in self.ranked if _split(other.layout) != _split(self.best.layout))
        return next(others, None)

    @property
    def note(self) -> str:
        """What to know about the first row's figures, or empty."""
        return (self.ranked or self.refused)[0].note

    @property
    def reason(self) -> str:
        """In one sentence: why the best wins, or why nothing fits."""
        tried = len(self.ranked) + len(self.refused)
        if not self.ranked:
            least = self.refused[0]
            sizes = f"{in_bytes(least.memory.total)} of {in_bytes(least.cluster.chip.memory_bytes)} a device"
            remedy = "Take more chips, or chips with more memory."
            return f"None of {tried:,} layouts fits: the smallest takes {sizes} ({least.layout}). {remedy}"
        if self.runner_up is None:
            return f"{len(self.ranked):,} of {tried:,} layouts fit, and all split the model in the same way."
        return f"{len(self.ranked):,} of {tried:,} layouts fit. {self._comparison()}"

    def _comparison(self) -> str:
        best, other = self.best.step, self.runner_up.step
        ratio, gaps = other.total / best.total, {kind: other.kinds[kind] - time for kind, time in best.kinds.items()}
        words = "is as fast" if abs(ratio - 1) <= ALIKE else f"takes {ratio:.3g} times as long"
        large = sorted((kind for kind in gaps if abs(gaps[kind]) > 0.01 * best.total), key=gaps.get, reverse=True)
        if large:
            words += ": " + ", ".join(
                f"{in_seconds(abs(gaps[kind]))} {'more' if gaps[kind] > 0 else 'less'} {kind}" for kind in large
            )
        near = " That is within the interval: measure both." if other.total < self.best.step_interval[1] else ""
        return f"{self.runner_up.layout} {words}.{near}"

    def as_dict(self) -> dict:
        ranked = [prediction.as_dict() for prediction in self.ranked[:SHOWN]]
        return {"reason": self.reason, "fit": len(self.ranked), "refused": len(self.refused), "ranked": ranked}

    def __repr__(self) -> str:
        return "\n".join([repr(self._table), self.reason, *filter(None, [self.note])])

    def _repr_html_(self) -> str:
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        return f"{self._table._repr_html_()}<p>{escape(self.reason)}</p>{note}"

    @property
    def _table(self) -> Table:
        headers = ("layout", "memory", "step", "of the peak", "longest wait")
        return Table(headers, [_row(shown) for shown in self.ranked[:SHOWN] or self.refused[:SHOWN]])


def search(
    model: Transformer | Chain,
    cluster: Cluster,
    global_batch: int,
    *,
    precision: str | None = None,
    examples_per_second: float = 0,
) -> Search:
    """Predict every sensible layout: all factorings of the number of chips, with tensor parallelism inside a node.

    precision  by default the chip's usual one
    Micro-batches are powers of two, and a stage has 1, 2 or 4 chunks; sequence parallelism, groups of ZeRO-3, what is
    offloaded, and ZeRO-2 and 3 in a pipeline are left to `predict`.
    Raises  CourseError when no layout divides the batch
    """
    chain = model.chain() if isinstance(model, Transformer) else model
    given = layouts(chain, cluster, global_batch, precision or cluster.chip.usual_precision)
    tried = [predict(model, cluster, one, global_batch, examples_per_second=examples_per_second) for one in given]
    if not tried:
        raise CourseError(
            f"no layout on {cluster.chips} chips divides a global batch of {global_batch:,}: "
            f"take a multiple of {cluster.chips}, or fewer chips."
        )
    ranked = sorted((one for one in tried if one.fits), key=_preference)
    refused = sorted((one for one in tried if not one.fits), key=lambda one: one.memory.total)
    return Search(tuple(ranked), tuple(refused))


def _preference(prediction: Prediction) -> tuple:
    layout = prediction.layout
    degrees = (layout.pipeline, layout.tensor, layout.interleave, layout.expert, -layout.micro_batch)
    return round(math.log(prediction.step.total) / ALIKE), layout.zero, RECOMPUTE.index(layout.recompute), *degrees


def layouts(chain: Chain, cluster: Cluster, global_batch: int, precision: str) -> Iterator[Layout]:
    """The layouts that `search` tries.

    On this machine, where each is tried for real, these are replicas with one, two or four micro-batches.
    """
    chips = cluster.chips
    if cluster.measured:
        for count in (1, 2, 4):
            if global_batch % (chips * count) == 0:
                yield Layout(chips, micro_batch=global_batch // (chips * count), precision=precision)
        return
    scores = any(block.kept_scores for block in chain.blocks)
    recompute = RECOMPUTE if scores else ("none", "full")
    most_tensor, most_stages = min(cluster.chip.per_node, chain.heads or 1), chain.layers or len(chain.blocks)
    for tensor in _divisors(chips):
        for pipeline in _divisors(chips // tensor):
            data = chips // (tensor * pipeline)
            fine = tensor <= most_tensor and chain.heads % tensor == 0 and pipeline <= most_stages
            if not fine or global_batch % data:
                continue
            stages = (ZERO if pipeline == 1 else IN_A_PIPELINE) if data > 1 else (0,)
            # Experts stay whole, or are dealt out among as many replicas as can share them.
            experts = sorted({1, math.gcd(data, chain.experts)})
            chunks = [
                v for v in CHUNKS if v == 1 or pipeline > 1 and chain.layers and not chain.layers % (pipeline * v)
            ]
            choices = itertools.product(_powers_of_two(global_batch // data), stages, recompute, chunks, experts)
            for micro_batch, zero, again, interleave, expert in choices:
                if interleave > 1 and global_batch // (data * micro_batch) % pipeline:
                    continue
                yield Layout(
                    data,
                    tensor,
                    pipeline,
                    micro_batch=micro_batch,
                    recompute=again,
                    zero=zero,
                    precision=precision,
                    interleave=interleave,
                    split_norms=splits_norms(tensor, cluster),
                    expert=expert,
                )


def splits_norms(tensor: int, cluster: Cluster) -> bool:
    """Whether tensor parallelism divides the norms too, as Megatron does by default and Keras on a TPU does not."""
    return tensor > 1 and cluster.chip.family != TPU


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _powers_of_two(number: int) -> list[int]:
    """Those that divide the number."""
    return [2**n for n in range(number.bit_length()) if number % 2**n == 0]


def _split(layout: Layout) -> tuple[int, int, int]:
    return layout.data, layout.tensor, layout.pipeline


def _row(prediction: Prediction) -> tuple[str, ...]:
    step = prediction.step
    waits = {kind: time for kind, time in step.kinds.items() if kind != "compute"}
    longest = max(waits, key=waits.get)
    wait, share = f"{longest} {waits[longest] / step.total:.0%}", f"{prediction.model_flops_share:.0%}"
    return str(prediction.layout), in_bytes(prediction.memory.total), in_seconds(step.total), share, wait
