"""Every layout of a model on a cluster, which fit, which is fastest, and why the next one loses. Standard library only; taught in notebooks/10."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from course_lib.errors import CourseError
from course_lib.planner.blocks import Chain
from course_lib.planner.layout import RECOMPUTE, Layout
from course_lib.planner.prediction import Prediction, in_bytes, in_seconds, predict
from course_lib.planner.rented_chips import Cluster
from course_lib.planner.transformer import Transformer

SHOWN = 8
ALIKE = 0.02  # times that differ by less count as equal, and the simpler layout goes first


@dataclass(frozen=True, repr=False)
class Search:
    """Predictions of all layouts that were tried, the fastest that fits first; prints as a table with the reason.

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
        """The fastest that splits the model otherwise than the best."""
        return (
            next((other for other in self.ranked if _split(other.layout) != _split(self.best.layout)), None)
            if self.ranked
            else None
        )

    @property
    def reason(self) -> str:
        """In one sentence: why the best wins, or why nothing fits."""
        tried = len(self.ranked) + len(self.refused)
        if not self.ranked:
            least = self.refused[0]
            return (
                f"None of {tried:,} layouts fits: the smallest takes {in_bytes(least.memory.total)} of "
                f"{in_bytes(least.cluster.chip.memory_bytes)} a device ({least.layout}). Take more chips, or chips with more memory."
            )
        if self.runner_up is None:
            return f"{len(self.ranked):,} of {tried:,} layouts fit, and all split the model in the same way."
        return f"{len(self.ranked):,} of {tried:,} layouts fit. {self._comparison()}"

    def _comparison(self) -> str:
        best, other = self.best.step, self.runner_up.step
        ratio, gaps = other.total / best.total, {kind: other.kinds[kind] - time for kind, time in best.kinds.items()}
        telling = sorted((kind for kind in gaps if abs(gaps[kind]) > 0.01 * best.total), key=gaps.get, reverse=True)
        words = "is as fast" if abs(ratio - 1) <= ALIKE else f"takes {ratio:.3g} times as long"
        parts = ", ".join(
            f"{in_seconds(abs(gaps[kind]))} {'more' if gaps[kind] > 0 else 'less'} {kind}" for kind in telling
        )
        near = " That is within the interval: measure both." if other.total < self.best.step_interval[1] else ""
        return f"{self.runner_up.layout} {words}{': ' * bool(parts)}{parts}.{near}"

    def as_dict(self) -> dict:
        return {
            "reason": self.reason,
            "fit": len(self.ranked),
            "refused": len(self.refused),
            "ranked": [p.as_dict() for p in self.ranked[:SHOWN]],
        }

    def __repr__(self) -> str:
        rows = [HEADERS, *map(_row, self._shown())]
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
            for row in rows
        ]
        return "\n".join([*lines, self.reason])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(cell)}</th>" for cell in HEADERS)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _row(shown)) + "</tr>" for shown in self._shown()
        )
        return f"<table><tr>{head}</tr>{body}</table><p>{escape(self.reason)}</p>"

    def _shown(self) -> Sequence[Prediction]:
        return self.ranked[:SHOWN] or self.refused[:SHOWN]


HEADERS = ("layout", "memory", "step", "of the peak", "longest wait")


def search(
    model: Transformer | Chain,
    cluster: Cluster,
    global_batch: int,
    *,
    precision: str | None = None,
    examples_per_second: float = 0,
) -> Search:
    """Predict every sensible layout: all ways to multiply to the chips, with tensor parallelism inside a node.

    precision  by default the chip's usual one
    Micro-batches are powers of two; sequence parallelism is left to `predict`.
    Raises  CourseError when no layout divides the batch
    """
    chain = model.chain() if isinstance(model, Transformer) else model
    predictions = [
        predict(chain, cluster, layout, global_batch, examples_per_second=examples_per_second)
        for layout in layouts(chain, cluster, global_batch, precision or cluster.chip.usual_precision)
    ]
    if not predictions:
        raise CourseError(
            f"no layout on {cluster.chips} chips divides a global batch of {global_batch:,}: take a multiple of {cluster.chips}, or fewer chips."
        )
    fit = sorted((p for p in predictions if p.fits), key=_preference)
    return Search(tuple(fit), tuple(sorted((p for p in predictions if not p.fits), key=lambda p: p.memory.total)))


def _preference(prediction: Prediction) -> tuple:
    layout = prediction.layout
    simple = (layout.zero, RECOMPUTE.index(layout.recompute), layout.pipeline, layout.tensor, -layout.micro_batch)
    return round(math.log(prediction.step.total) / ALIKE), *simple


def layouts(chain: Chain, cluster: Cluster, global_batch: int, precision: str) -> Iterator[Layout]:
    """The layouts that `search` tries; on this machine, where each is tried for real, replicas with one, two or four micro-batches."""
    if cluster.measured:
        share = global_batch // cluster.chips
        parts = [
            count for count in (1, 2, 4) if share % count == 0 and share >= count and global_batch % cluster.chips == 0
        ]
        yield from (Layout(cluster.chips, micro_batch=share // count, precision=precision) for count in parts)
        return
    recompute = ("none", *["selective"] * any(block.kept_scores for block in chain.blocks), "full")
    most_stages = chain.layers or len(chain.blocks)
    for tensor in _divisors(cluster.chips):
        for pipeline in _divisors(cluster.chips // tensor):
            data = cluster.chips // (tensor * pipeline)
            if (
                tensor > min(cluster.chip.per_node, chain.heads or 1)
                or chain.heads % tensor
                or pipeline > most_stages
                or global_batch % data
            ):
                continue
            for micro_batch in _powers_of_two(global_batch // data):
                for zero in (0, 1, 2, 3) if data > 1 else (0,):
                    for again in recompute:
                        yield Layout(
                            data, tensor, pipeline, 1, micro_batch, again, zero, precision, split_norms=tensor > 1
                        )


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _powers_of_two(number: int) -> list[int]:
    return [2**n for n in range(number.bit_length()) if number % 2**n == 0]


def _split(layout: Layout) -> tuple:
    return layout.data, layout.tensor, layout.pipeline


def _row(prediction: Prediction) -> tuple[str, ...]:
    kinds = {kind: time for kind, time in prediction.step.kinds.items() if kind != "compute"}
    longest = max(kinds, key=kinds.get)
    return (
        str(prediction.layout),
        in_bytes(prediction.memory.total),
        in_seconds(prediction.step.total),
        f"{prediction.model_flops_share:.0%}",
        f"{longest} {kinds[longest] / prediction.step.total:.0%}",
    )
