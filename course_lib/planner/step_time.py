"""Seconds of one training step by kind, from a few formulas. Standard library only; taught in notebooks/10.

Sources: Narayanan and others (2021), arXiv 2104.04473, for arithmetic, bubble and tensor-parallel traffic;
Williams and others (2009), "Roofline", for arithmetic beside memory; Rajbhandari and others (2020), arXiv
1910.02054, for ZeRO's traffic; Patarasuk & Yuan (2009) for the ring's 2 (n - 1) / n.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from course_lib.errors import CourseError
from course_lib.planner.blocks import Block, Chain, StageBlocks
from course_lib.planner.calibration import Calibration
from course_lib.planner.layout import Layout
from course_lib.planner.memory import (
    FLOAT32_LOGITS,
    ByKind,
    boundary_bytes,
    divided,
    frozen_bytes,
    kept_bytes,
    stage_kept_bytes,
    stage_parameters,
)
from course_lib.planner.rented_chips import TPU, Cluster

# Bytes per second between a host's processors and their memory: half of what two sockets with eight channels of DDR4
# have on paper (204.8 GB/s each, AMD's EPYC 7003 data sheet). No run was measured for it.
HOST_READ = 200e9
CORNER = 4  # of the curve between two times of which the larger counts


@dataclass(frozen=True)
class StepTime(ByKind):
    """Seconds of one step, on the device that takes longest.

    compute   matrix products
    memory    what lies between them, at the speed of the chip's memory; the optimizer's update
    tensor    sums over a tensor-parallel or a sequence-parallel group; tokens sent to their experts and back
    data      gradients, and parameters under ZeRO-3, that the backward pass does not hide
    bubble    waiting for the pipeline to fill and to drain, sending between its stages, and for its slowest stage
    overhead  what starting operations takes beyond their work; on this machine, starting the step
    input     waiting for data
    host      moving to the host what is offloaded, updating it there, and moving it back
    """

    compute: float = 0.0
    memory: float = 0.0
    tensor: float = 0.0
    data: float = 0.0
    bubble: float = 0.0
    overhead: float = 0.0
    input: float = 0.0
    host: float = 0.0


def step_time(chain: Chain, cluster: Cluster, layout: Layout, global_batch: int, constants: Calibration) -> StepTime:
    """Time of one step, with enough data.

    Raises  CourseError for a batch that does not divide, more stages than layers, or a precision that the chip lacks
    """
    stages, m, p = chain.stages(layout.pipeline), layout.micro_batches(global_batch), layout.pipeline
    times = {stage.shape: _stage(stage, cluster, layout, constants) for stage in {s.shape: s for s in stages}.values()}
    slowest = max(times.values(), key=lambda stage: stage.total)
    mean = sum(times[stage.shape].total for stage in stages) / p
    hop = _hop(stages, cluster, layout, constants)
    # One chunk's hop is hidden behind another's work; without interleaving the next stage waits for it.
    waits = hop if layout.interleave == 1 else max(0.0, hop - slowest.total)
    held = max((stage_parameters(chain, stage, stages, layout) for stage in range(p)), key=sum)
    frozen = max(frozen_bytes(chain, stage, stages, layout) for stage in range(p))
    sending = _gradients(held, frozen, cluster, layout, m) / constants.link
    update = divided(held, 1, layout) * 2 * (layout.numbers.master + 4 * chain.slots + 4)
    on_chip = 0 if "optimizer" in layout.offload else update / cluster.chip.read_per_second
    return StepTime(
        compute=m * slowest.compute,
        memory=m * slowest.memory + on_chip,
        tensor=m * slowest.tensor,
        data=_exposed(sending, slowest.total, m, layout, constants),
        bubble=m * waits + (p - 1) / layout.interleave * (mean + hop),
        overhead=m * slowest.overhead,
        host=_host(held, update, stages, cluster, layout, m, slowest.total),
    )


def _host(held, update: float, stages, cluster: Cluster, layout: Layout, m: int, micro_batch: float) -> float:
    """Seconds for what the layout offloads.

    The optimizer's: gradients go to the host, its processors update, weights come back, and nothing hides that.
    Activations go and come back beside the work, which hides them if it is long enough.
    """
    seconds, numbers = 0.0, layout.numbers
    if "optimizer" in layout.offload:
        together = min(layout.chips, cluster.chip.per_node)  # devices that share a host
        sent = divided(held, 1, layout) * (numbers.gradients + numbers.weights)
        seconds += sent / cluster.chip.host + update * together / HOST_READ
    if "activations" in layout.offload:
        kept = max(stage_kept_bytes(stages, stage, layout) for stage in range(len(stages)))
        seconds += m * max(0.0, 2 * kept / cluster.chip.host - micro_batch)
    return seconds


def _exposed(sending: float, micro_batch: float, m: int, layout: Layout, constants: Calibration) -> float:
    """Seconds of data-parallel communication that work does not hide.

    Of a share nothing is hidden. The rest hides behind the whole step under ZeRO-3, which gathers and scatters all
    the time, and otherwise behind the last micro-batch's backward pass, two thirds of its time.
    """
    room = m * micro_batch if layout.zero == 3 else 2 / 3 * micro_batch
    return max(constants.data_exposed * sending, sending - room)


def with_input(step: StepTime, global_batch: int, examples_per_second: float) -> StepTime:
    """The step when an input pipeline beside it delivers so many examples; 0 for enough."""
    fed = global_batch / examples_per_second if examples_per_second else 0
    return replace(step, input=max(0.0, fed - step.total))


def _stage(stage: StageBlocks, cluster: Cluster, layout: Layout, constants: Calibration) -> StepTime:
    """One micro-batch through one stage; `overhead` is what starting operations adds to their work."""
    parts = [(_block(block, cluster, layout, constants), times) for block, times in stage.runs]
    kinds = ("compute", "memory", "tensor", "overhead")
    work = StepTime(**{kind: sum(times * getattr(part, kind) for part, times in parts) for kind in kinds})
    done, starts = work.total - work.overhead, work.overhead
    # The host starts operations while the chip works, so the slower of both counts, with a soft corner: within a
    # stage some operations wait for the host and others for the chip.
    return replace(work, overhead=(done**CORNER + starts**CORNER) ** (1 / CORNER) - done)


def _block(block: Block, cluster: Cluster, layout: Layout, constants: Calibration) -> StepTime:
    """One micro-batch through one block: forward once, backward twice the work, and forward again to recompute.

    Returns  its work by kind, and as `overhead` the seconds that starting its operations takes
    """
    rate, read = _matrix_rate(cluster, layout.numbers.format, constants), cluster.chip.read_per_second
    examples = layout.micro_batch / layout.sequence / layout.tensor
    # The output layer is not recomputed, nor what has no backward pass.
    again = layout.recompute == "full" and not block.logits and block.backward > 0
    passes = block.passes + again
    scores = examples * block.score_flops
    if block.kept_scores:  # plain matrix products
        scores *= (passes + (layout.recompute == "selective")) / rate
    else:
        kind = "bfloat16" if layout.numbers.format == "float8" else layout.numbers.format  # attention avoids float8
        scores *= passes / (cluster.chip.flops_per_second[kind] * constants.attention)
    kept = kept_bytes(block, layout, "none")
    logits = examples * block.logits * (layout.numbers.compute + FLOAT32_LOGITS)
    traffic = constants.traffic_tpu if cluster.chip.family == TPU else constants.traffic
    ring = _ring(block, cluster, layout, constants)
    # An all-reduce in the forward pass has one in the backward, and is done again when the forward is.
    sums = 1 + again + (block.backward > 0)
    latency = 2 * sums * constants.latency if block.exchanged and layout.tensor > 1 else 0
    sent = _all_reduce(block.exchanged, cluster, layout, constants) + _all_to_all(block, cluster, layout, constants)
    return StepTime(
        compute=examples * block.flops * (1 + block.backward + again) / rate + scores,
        memory=(kept * passes + logits) * traffic / read,
        tensor=sent * sums + latency + max(0.0, ring - scores),
        overhead=block.operations * passes * _launch(cluster, layout, constants),
    )


def _launch(cluster: Cluster, layout: Layout, constants: Calibration) -> float:
    """Seconds between the starts of two operations; a TPU runs a whole step without its host."""
    if cluster.chip.family == TPU:
        return 0.0
    return constants.launch_compiled if layout.numbers.compiled else constants.launch


def _matrix_rate(cluster: Cluster, kind: str, constants: Calibration) -> float:
    chip = cluster.chip
    if kind not in chip.flops_per_second:
        raise CourseError(f"{chip.name} has no matrix products in {kind}; it has {', '.join(chip.flops_per_second)}.")
    share = constants.matrix[chip.family] * (constants.float8 if kind == "float8" else 1)
    return chip.flops_per_second[kind] * share


def _all_reduce(numbers: float, cluster: Cluster, layout: Layout, constants: Calibration) -> float:
    """Seconds of summing so many numbers per example over the tensor-parallel group, by a ring."""
    t, sent = layout.tensor, numbers * layout.micro_batch / layout.sequence * layout.numbers.compute
    return 2 * (t - 1) / t * sent / (cluster.link(t) * constants.link)


def _all_to_all(block: Block, cluster: Cluster, layout: Layout, constants: Calibration) -> float:
    """Seconds of sending tokens to the devices of their experts and back, when all experts get as many."""
    e, divided_by = layout.expert, layout.sequence * (layout.tensor if layout.split_norms else 1)
    sent = block.dispatched * layout.micro_batch / divided_by * layout.numbers.compute
    return 2 * (e - 1) / e * sent / (cluster.hop(e * layout.tensor) * constants.link)


def _ring(block: Block, cluster: Cluster, layout: Layout, constants: Calibration) -> float:
    """Seconds of passing keys and values around a sequence-parallel group, forward, backward, and their gradients."""
    c, sent = layout.sequence, 3 * block.keys * layout.micro_batch * layout.numbers.compute / layout.tensor
    return (c - 1) / c * sent / (cluster.link(c, layout.tensor) * constants.link)


def _hop(stages: Sequence[StageBlocks], cluster: Cluster, layout: Layout, constants: Calibration) -> float:
    """Seconds of sending one micro-batch's boundary on, and its gradient back, with nothing beside it."""
    if len(stages) == 1:
        return 0.0
    sent = max(boundary_bytes(stage, layout) for stage in stages[1:])
    return 2 * layout.interleave * sent / (cluster.hop(layout.chips) * constants.link)


def _gradients(held: tuple[float, float], frozen: float, cluster: Cluster, layout: Layout, m: int) -> float:
    """Seconds of the data-parallel communication if the links reached their peak and nothing hid it.

    held    parameters of a device's experts, which fewer replicas share, and all others
    frozen  bytes of its weights that are not trained
    """
    (experts, others), spread = held, layout.sharing_experts
    ring = _share(spread) * experts / cluster.link(spread, layout.tensor * layout.expert)
    ring += _share(layout.sharing) * others / cluster.link(layout.sharing, layout.tensor)
    if layout.zero == 3:  # all weights gathered twice and gradients scattered, for each micro-batch
        still = 2 * _share(layout.sharing) * frozen / cluster.link(layout.sharing, layout.tensor)
        groups = layout.replicas // layout.sharing  # they sum what each has scattered, once
        between = 2 * _share(groups) * divided(held, 3, layout) / cluster.link(groups, layout.tensor * layout.sharing)
        return m * (3 * ring * layout.numbers.compute + still) + between * layout.numbers.compute
    if layout.zero == 2:  # no replica holds a whole gradient to add to, so each micro-batch's is scattered
        return ring * layout.numbers.weights * (m + 1)
    return 2 * ring * layout.numbers.weights


def _share(devices: int) -> float:
    """Of a buffer, what a ring of so many devices sends of it from each, one way."""
    return (devices - 1) / devices
