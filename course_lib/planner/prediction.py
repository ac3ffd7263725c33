"""What a training step needs in one layout: memory and time by kind, with an interval; taught in notebooks/10."""

from dataclasses import dataclass, replace
from html import escape

from course_lib.errors import CourseError
from course_lib.planner import measured_machine, tpu_memory
from course_lib.planner.blocks import Chain
from course_lib.planner.calibration import Calibration, chips_of_runs, fitted
from course_lib.planner.layout import Layout
from course_lib.planner.memory import Memory, host_bytes, memory
from course_lib.planner.rented_chips import GIB, TPU, Chip, Cluster, slice_sizes
from course_lib.planner.step_time import StepTime, step_time, with_input
from course_lib.planner.transformer import Transformer
from course_lib.table import Table

Interval = tuple[float, float]
FEW = 0.04  # bytes per trained parameter, such as the moving averages of normalization
NOTHING = 1e-5  # a share of the step that is not shown
# For what the TPU's compiler keeps, see tpu_memory.py: twice a GPU's for the model that it was read for.
AS_ON_A_GPU = "Activations are counted as on a GPU; a TPU's compiler may keep twice as much: `course compile` asks it."
UNMEASURED = "The published runs behind the interval were read without {}: it may be too narrow here."


@dataclass(frozen=True, repr=False)
class Prediction:
    """One layout's figures, per device and per step; shown as a table.

    memory           of the fullest device, bytes by kind
    step             of the slowest device, seconds by kind
    memory_interval  bytes: for published runs that the fit had not seen, 8 of 10 measured values lay so far around
                     their prediction; on this machine and for a TPU's compiler, the aim of measured_machine.py and
                     tpu_memory.py
    step_interval    seconds, in the same sense
    model_flops      arithmetic that the model itself needs in a step, without recomputation
    note             what to know about these figures, or empty
    """

    chain: Chain
    cluster: Cluster
    layout: Layout
    global_batch: int
    memory: Memory
    step: StepTime
    memory_interval: Interval
    step_interval: Interval
    note: str = ""

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.cluster.chip.memory_bytes

    @property
    def surely_fits(self) -> bool:
        return self.memory_interval[1] <= self.cluster.chip.memory_bytes

    @property
    def host_bytes(self) -> float:
        """In the host's memory for the device that needs the most there."""
        return host_bytes(self.chain, self.layout, self.global_batch) if self.layout.offload else 0.0

    @property
    def model_flops(self) -> float:
        return self.chain.step_flops * self.global_batch

    @property
    def model_flops_share(self) -> float:
        """Model FLOPs utilisation: the model's own arithmetic as a share of the chips' peak."""
        rates = self.cluster.chip.flops_per_second
        peak = rates.get(self.layout.numbers.format, max(rates.values()))  # this machine is measured only in float32
        return self.model_flops / (self.layout.chips * peak * self.step.total)

    @property
    def verdict(self) -> str:
        if self.surely_fits:
            return "fits"
        if self.fits:
            return "fits, with little to spare"
        return "may not fit" if self.memory_interval[0] <= self.cluster.chip.memory_bytes else "does not fit"

    def as_dict(self) -> dict:
        return {
            "chip": self.cluster.chip.name,
            "chips": self.cluster.chips,
            "layout": dict(vars(self.layout)),
            "global_batch": self.global_batch,
            "parameters": self.chain.parameters,
            "frozen_bytes": self.chain.frozen_bytes,
            "memory_bytes": {**self.memory.kinds, "total": self.memory.total},
            "host_bytes": self.host_bytes,
            "memory_interval_bytes": self.memory_interval,
            "step_seconds": {**self.step.kinds, "total": self.step.total},
            "step_interval_seconds": self.step_interval,
            "model_flops_share": self.model_flops_share,
            "fits": self.fits,
            "verdict": self.verdict,
            "note": self.note,
        }

    def __repr__(self) -> str:
        return "\n".join([self._title, repr(self._table), *filter(None, [self.note])])

    def _repr_html_(self) -> str:
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        return f"<p>{escape(self._title)}</p>{self._table._repr_html_()}{note}"

    @property
    def _title(self) -> str:
        count, frozen, cluster = self.chain.parameters, self.chain.frozen_bytes, self.cluster
        parameters = f"{count / 1e9:,.3g} billion" if count >= 1e9 else f"{count:,}"
        beside = f" that are trained, beside {in_bytes(frozen)} that are not" if frozen else ""
        return (
            f"{self.chain.name}, {parameters} parameters{beside}, global batch {self.global_batch:,}, "
            f"on {cluster.chips} x {cluster.chip.name}: {self.layout}"
        )

    @property
    def _table(self) -> Table:
        room, total, step = self.cluster.chip.memory_bytes, self.memory.total, self.step.total
        rows = [(kind, in_bytes(size), f"{size / room:.0%}") for kind, size in self.memory.kinds.items() if size]
        low, high = map(in_bytes, self.memory_interval)
        if self.host_bytes:
            rows.append(("host's memory", in_bytes(self.host_bytes), "for this device"))
        rows.append(("memory in all", in_bytes(total), f"of {in_bytes(room)}, {low} to {high}: {self.verdict}"))
        times = [(kind, time) for kind, time in self.step.kinds.items() if time > NOTHING * step]
        rows += [(kind, in_seconds(time), f"{time / step:.0%}") for kind, time in times]
        low, high = map(in_seconds, self.step_interval)
        model = f"{self.model_flops_share:.0%} of the peak for the model"
        rows.append(("step in all", in_seconds(step), f"{low} to {high}; {model}"))
        return Table(("kind", "amount", "share, interval"), rows, left=(0, 2))


def predict(
    model: Transformer | Chain, cluster: Cluster, layout: Layout, global_batch: int, *, examples_per_second: float = 0
) -> Prediction:
    """Memory and time of one training step in one layout.

    model                a Transformer by numbers, or a chain, such as from_keras() makes
    examples_per_second  that the input pipeline delivers; 0 for enough
    Raises               CourseError when the layout does not multiply to the chips, the batch
                         does not divide, or the chip lacks the precision
    """
    chain, constants = model.chain() if isinstance(model, Transformer) else model, fitted()
    _require_sense(chain, cluster, layout, global_batch)
    need, around_memory = _memory(model, chain, cluster, layout, global_batch, constants)
    step, around_step = _step(chain, cluster, layout, global_batch, constants)
    step = with_input(step, global_batch, examples_per_second)
    memory_interval = tuple(need.total * side for side in around_memory)
    step_interval = tuple(step.total * side for side in around_step)
    as_gpu = cluster.chip.family == TPU and not tpu_memory.compilable(model, layout)
    notes = [AS_ON_A_GPU] if as_gpu else []
    if not cluster.measured and (unmeasured := _unmeasured(chain, layout, cluster.chip)):
        notes.append(UNMEASURED.format(", ".join(unmeasured)))
    note = " ".join(notes)
    return Prediction(chain, cluster, layout, global_batch, need, step, memory_interval, step_interval, note)


def _unmeasured(chain: Chain, layout: Layout, chip: Chip) -> list[str]:
    """What of a model, a layout and a chip is planned by formulas alone."""
    kinds = {
        f"the chip {chip.name}": chip.name not in chips_of_runs(),
        "another optimizer than Adam": chain.slots != 2,
        "frozen weights": chain.frozen_bytes > FEW * chain.parameters,
        "experts": chain.experts > 1,
        "groups that divide the states": layout.shard,
        "offload": layout.offload,
    }
    return [name for name, there in kinds.items() if there]


def _require_sense(chain: Chain, cluster: Cluster, layout: Layout, global_batch: int) -> None:
    chips, chip, pieces = cluster.chips, cluster.chip, layout.pipeline * layout.interleave
    if layout.chips != chips:
        raise CourseError(
            f"data {layout.data} x tensor {layout.tensor} x pipeline {layout.pipeline} x sequence {layout.sequence} "
            f"takes {layout.chips} chips and the cluster has {chips}: their product must be {chips}."
        )
    if chip.family == TPU and chips not in (sizes := slice_sizes(chip)):
        raise CourseError(
            f"no slice of {chip.name} has {chips:,} chips, and the planner does not plan several slices: "
            f"take {', '.join(f'{size:,}' for size in sizes[:-1])} or {sizes[-1]:,}."
        )
    if layout.interleave > 1 and (layout.pipeline == 1 or not chain.layers or chain.layers % pieces):
        raise CourseError(
            f"{chain.layers} layers can't be cut into {layout.interleave} chunks for each of {layout.pipeline} "
            "pipeline stages: take 2 stages or more, and a product that divides the layers."
        )
    if layout.interleave > 1 and (count := layout.micro_batches(global_batch)) % layout.pipeline:
        raise CourseError(
            f"{count} micro-batches can't be interleaved over {layout.pipeline} pipeline stages: take a multiple of "
            f"{layout.pipeline}, with a smaller micro-batch or a larger global batch."
        )
    if chain.experts % layout.expert:
        raise CourseError(
            f"{layout.expert} devices can't share a layer's {chain.experts} experts: take a divisor of {chain.experts}."
        )
    if layout.offload and (cluster.measured or chip.family == TPU):
        raise CourseError(f"the planner knows no link from {chip.name} to its host: plan offload for a GPU.")
    if chain.heads % layout.tensor:
        raise CourseError(
            f"{layout.tensor} tensor-parallel devices can't share {chain.heads} heads: take a divisor of {chain.heads}."
        )


def _memory(model, chain, cluster, layout, global_batch: int, constants: Calibration) -> tuple[Memory, Interval]:
    """Memory, and the interval of measured over predicted."""
    if cluster.measured and cluster.shared:  # a CPU's allocator is replayed; on a GPU the formulas count
        return measured_machine.memory(chain, cluster, layout, global_batch), measured_machine.MEMORY_AROUND
    if cluster.chip.family == TPU and tpu_memory.compilable(model, layout):
        return tpu_memory.compiled_memory(model, layout, global_batch), tpu_memory.AROUND
    need = memory(chain, layout, global_batch, constants)
    if cluster.chip.family == TPU:
        need = replace(need, framework=tpu_memory.RESERVED_BYTES)
    return need, (constants.memory_low, constants.memory_high)


def _step(chain, cluster, layout, global_batch: int, constants: Calibration) -> tuple[StepTime, Interval]:
    """Time of a step, and the interval of measured over predicted."""
    if cluster.measured:
        return measured_machine.step_time(chain, cluster, layout, global_batch), measured_machine.TIME_AROUND
    return step_time(chain, cluster, layout, global_batch, constants), (constants.time_low, constants.time_high)


def in_bytes(size: float) -> str:
    for unit, name in ((GIB, "GiB"), (2**20, "MiB")):
        if size >= unit / 10:
            return f"{size / unit:,.3g} {name}"
    return f"{size / 2**10:,.3g} KiB"


def in_seconds(time: float) -> str:
    return f"{time:,.3g} s" if time >= 1 else f"{time * 1e3:,.3g} ms"
