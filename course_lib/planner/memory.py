"""Memory of one device by kind, from a few formulas. Standard library only; taught in notebooks/10.

Sources: Rajbhandari and others (2020), "ZeRO", arXiv 1910.02054, for what the stages divide; Korthikanti
and others (2022), arXiv 2205.05198, for what is kept under tensor and pipeline parallelism; Narayanan and
others (2021), arXiv 2104.04473, for the micro-batches in flight.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.planner.blocks import Block, Chain, StageBlocks
from course_lib.planner.calibration import Calibration
from course_lib.planner.layout import Layout

CONTEXT_BYTES = 1.6e9  # what a process takes on a GPU before its first tensor, in BLOOM's notes
FLOAT32_LOGITS = 4 + 4  # bytes per number: the loss's float32 copy, and its gradient's
LOSS_CHUNKS = 8


class ByKind:
    """Base of a frozen dataclass whose fields are parts of one figure, in one unit."""

    @property
    def kinds(self) -> dict[str, float]:
        return dict(vars(self))

    @property
    def total(self) -> float:
        return sum(self.kinds.values())


@dataclass(frozen=True)
class Memory(ByKind):
    """Bytes of the fullest device at a step's peak.

    weights      the copy of the parameters that the forward pass reads, and what is frozen
    gradients    until the update
    optimizer    its slots, with the float32 master copy where there is one
    activations  what the forward pass keeps for the backward
    temporaries  what lives only while one block, the loss or a gathered shard is computed
    framework    the runtime's own: its context, its libraries' buffers
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    temporaries: float
    framework: float = 0


def memory(chain: Chain, layout: Layout, global_batch: int, constants: Calibration) -> Memory:
    """Memory of the device that needs the most.

    Raises  CourseError for a batch that does not divide, or more stages than layers
    """
    stages, count = chain.stages(layout.pipeline), layout.micro_batches(global_batch)
    needs = [_stage(chain, stage, stages, layout, count, constants) for stage in range(len(stages))]
    return max(needs, key=lambda need: need.total)


def in_flight(stage: int, layout: Layout, micro_batches: int) -> float:
    """Micro-batches whose activations a stage holds at most, under one forward, one backward.

    Interleaved stages start more chunks before the first backward: arXiv 2205.05198, section 4.2.3, for
    the first stage; each later one starts two chunks fewer.
    """
    p, v = layout.pipeline, layout.interleave
    started = p - stage if v == 1 else p + (p - 1 - 2 * stage) / v
    return min(micro_batches, started)


def stage_parameters(chain: Chain, stage: int, stages: Sequence[StageBlocks], layout: Layout) -> tuple[float, float]:
    """Parameters of one device of a stage before ZeRO divides anything: its experts', and all others."""
    blocks, last = stages[stage], stage == len(stages) - 1 > 0
    whole = blocks.total(lambda block: block.parameters - block.split_parameters)
    split = blocks.total(lambda block: block.split_parameters - block.expert_parameters) + (chain.tied if last else 0)
    experts = blocks.total(lambda block: block.expert_parameters)
    return experts / layout.tensor / layout.expert, whole + split / layout.tensor


def frozen_bytes(chain: Chain, stage: int, stages: Sequence[StageBlocks], layout: Layout) -> float:
    """Of one device's weights that are not trained, before ZeRO-3 divides them."""
    split = stages[stage].total(lambda block: block.frozen_split_bytes)
    whole = stages[stage].total(lambda block: block.frozen_bytes) - split
    split += chain.tied_bytes if stage == len(stages) - 1 > 0 else 0
    return whole + split / layout.tensor


def host_bytes(chain: Chain, layout: Layout, global_batch: int) -> float:
    """In the host's memory for one device, of the stage that needs the most there: what the layout offloads."""
    stages, count = chain.stages(layout.pipeline), layout.micro_batches(global_batch)
    needs = []
    for stage in range(len(stages)):
        optimizer = _optimizer_bytes(stage_parameters(chain, stage, stages, layout), chain, layout)
        kept = stage_kept_bytes(stages, stage, layout) * in_flight(stage, layout, count)
        sizes = {"optimizer": optimizer, "activations": kept}
        needs.append(sum(sizes[part] for part in layout.offload))
    return max(needs)


def kept_bytes(block: Block, layout: Layout, recompute: str | None = None) -> float:
    """Bytes that one micro-batch's forward pass through a block leaves on a device for the backward.

    recompute  the layout's by default
    """
    size, share, recompute = layout.numbers.compute, layout.micro_batch / layout.sequence, recompute or layout.recompute
    norms = layout.tensor if layout.split_norms else 1
    if recompute == "full" and not block.logits:
        return share * block.inputs * size / norms
    scores = block.kept_scores if recompute == "none" else 0
    split = (block.kept_split + scores) / layout.tensor
    gathered = block.kept / 2 if layout.split_norms and layout.keep_gathered else 0
    return share * ((block.kept * size + block.masks) / norms + (split + gathered) * size)


def boundary_bytes(stage: StageBlocks, layout: Layout) -> float:
    """Bytes of one micro-batch that enter a pipeline stage on each of its devices."""
    divided = layout.sequence * (layout.tensor if layout.split_norms else 1)
    return stage.runs[0][0].inputs * layout.micro_batch * layout.numbers.compute / divided


def _stage(chain: Chain, stage: int, stages, layout: Layout, micro_batches: int, constants: Calibration) -> Memory:
    numbers, blocks, held = layout.numbers, stages[stage], stage_parameters(chain, stage, stages, layout)
    frozen = frozen_bytes(chain, stage, stages, layout) / (layout.sharing if layout.zero == 3 else 1)
    kept = stage_kept_bytes(stages, stage, layout) * in_flight(stage, layout, micro_batches)
    if "activations" in layout.offload:  # while one block's are in use, another's are on their way
        kept = min(kept, 2 * blocks.largest(lambda block: kept_bytes(block, layout)))
    return Memory(
        weights=divided(held, 3, layout) * numbers.weights + frozen,
        gradients=divided(held, 2, layout) * numbers.gradients,
        optimizer=0 if "optimizer" in layout.offload else _optimizer_bytes(held, chain, layout),
        activations=kept * constants.fragmentation,
        temporaries=_temporaries(blocks, layout) * constants.fragmentation,
        framework=constants.framework_bytes if layout.chips > 1 else min(CONTEXT_BYTES, constants.framework_bytes),
    )


def divided(parameters: tuple[float, float], stage: int, layout: Layout) -> float:
    """Parameters whose states a device holds when ZeRO divides them from this stage on.

    Expert parallelism has dealt out the experts among some of the replicas before.
    """
    experts, others = parameters
    if layout.zero < stage:
        return experts + others
    return experts / layout.sharing_experts + others / layout.sharing


def _optimizer_bytes(parameters: tuple[float, float], chain: Chain, layout: Layout) -> float:
    return divided(parameters, 1, layout) * (layout.numbers.master + 4 * chain.slots)


def stage_kept_bytes(stages: Sequence[StageBlocks], stage: int, layout: Layout) -> float:
    """That one micro-batch leaves on a device of a stage for the backward pass."""
    kept = stages[stage].total(lambda block: kept_bytes(block, layout) if block.backward else 0)
    # What was sent to the next stage is held until its gradient comes back.
    return kept + (boundary_bytes(stages[stage + 1], layout) if stage + 1 < len(stages) else 0)


def _temporaries(stage: StageBlocks, layout: Layout) -> float:
    """The most that one block, the loss or a gathered shard needs for a moment."""
    size, share = layout.numbers.compute, layout.micro_batch / layout.sequence
    logits = share * stage.total(lambda block: block.logits) * (size + FLOAT32_LOGITS) / layout.tensor
    logits /= LOSS_CHUNKS if layout.chunked_loss else 1
    # A block's backward pass holds gradients beside what it keeps, of about half as many numbers at once;
    # when the block is recomputed, what it keeps is there again too.
    inner = stage.largest(lambda block: kept_bytes(block, layout, "none"))
    inner *= 1.5 if layout.recompute == "full" else 0.5
    # Under ZeRO-3 the next block's parameters are gathered while this one's are in use.
    gathered = 2 * stage.largest(lambda block: _gathered_bytes(block, layout)) if layout.zero == 3 else 0
    return max(logits, inner) + gathered


def _gathered_bytes(block: Block, layout: Layout) -> float:
    """Of a block's weights as a device needs them under ZeRO-3."""
    others = block.parameters - block.expert_parameters
    trained = (others + block.expert_parameters / layout.expert) * layout.numbers.compute
    return (trained + block.frozen_bytes) / layout.tensor
