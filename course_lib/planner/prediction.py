"""What a training step needs in one layout: memory and time by kind, with an interval. Standard library only; taught in notebooks/10."""

from dataclasses import dataclass, replace
from html import escape

from course_lib.errors import CourseError
from course_lib.planner import tpu_memory
from course_lib.planner.blocks import Chain
from course_lib.planner.calibration import Calibration, fitted
from course_lib.planner.layout import Layout
from course_lib.planner.memory import Memory, memory
from course_lib.planner.rented_chips import GIB, TPU, Cluster
from course_lib.planner.step_time import StepTime, step_time, with_input
from course_lib.planner.transformer import Transformer


@dataclass(frozen=True, repr=False)
class Prediction:
    """One layout's figures, per device and per step; prints as a table.

    memory             of the fullest device, bytes by kind
    step               of the slowest device, seconds by kind
    memory_interval    bytes: 8 of 10 published runs that the fit had not seen lay so far around their prediction;
                       on this machine and for a TPU's compiler, what machine.py and xla.py aim at
    step_interval      seconds, in the same sense
    model_flops        arithmetic of the step that the model asks for, recomputation left out
    """

    chain: Chain
    cluster: Cluster
    layout: Layout
    global_batch: int
    memory: Memory
    step: StepTime
    memory_interval: tuple[float, float]
    step_interval: tuple[float, float]

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.cluster.chip.memory_bytes

    @property
    def surely_fits(self) -> bool:
        return self.memory_interval[1] <= self.cluster.chip.memory_bytes

    @property
    def model_flops(self) -> float:
        return 3 * self.chain.flops * self.global_batch

    @property
    def model_flops_share(self) -> float:
        """Model FLOPs utilisation: of the chips' peak, what the model's own arithmetic gets."""
        rates = self.cluster.chip.flops_per_second
        peak = rates.get(self.layout.numbers.format, max(rates.values()))  # this machine was measured in float32 alone
        return self.model_flops / (self.layout.chips * peak * self.step.total)

    @property
    def verdict(self) -> str:
        least, room = self.memory_interval[0], self.cluster.chip.memory_bytes
        if self.surely_fits:
            return "fits"
        if self.fits:
            return "fits, with little to spare"
        return "may not fit" if least <= room else "does not fit"

    def as_dict(self) -> dict:
        return {
            "chip": self.cluster.chip.name,
            "chips": self.cluster.chips,
            "layout": {**vars(self.layout)},
            "global_batch": self.global_batch,
            "parameters": self.chain.parameters,
            "memory_bytes": {**self.memory.kinds, "total": self.memory.total},
            "memory_interval_bytes": self.memory_interval,
            "step_seconds": {**self.step.kinds, "total": self.step.total},
            "step_interval_seconds": self.step_interval,
            "model_flops_share": self.model_flops_share,
            "fits": self.fits,
            "verdict": self.verdict,
        }

    def __repr__(self) -> str:
        title, rows = self._rows()
        wide = max(len(name) for name, _, _ in rows)
        return "\n".join([title, *(f"  {name:{wide}}  {value:>12}  {share}".rstrip() for name, value, share in rows)])

    def _repr_html_(self) -> str:
        title, rows = self._rows()
        cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
        return f"<p>{escape(title)}</p><table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"

    def _rows(self) -> tuple[str, list[tuple[str, str, str]]]:
        title = (
            f"{self.chain.name}, {_in_count(self.chain.parameters)} parameters, global batch {self.global_batch:,}, "
            f"on {self.cluster.chips} x {self.cluster.chip.name}: {self.layout}"
        )
        room = self.cluster.chip.memory_bytes
        rows = [(name, in_bytes(size), f"{size / room:.0%}") for name, size in self.memory.kinds.items() if size]
        low, high = map(in_bytes, self.memory_interval)
        rows.append(
            ("memory in all", in_bytes(self.memory.total), f"of {in_bytes(room)}, {low} to {high}: {self.verdict}")
        )
        rows += [
            (name, in_seconds(time), f"{time / self.step.total:.0%}") for name, time in self.step.kinds.items() if time
        ]
        low, high = map(in_seconds, self.step_interval)
        rows.append(
            (
                "step in all",
                in_seconds(self.step.total),
                f"{low} to {high}; {self.model_flops_share:.0%} of the peak for the model",
            )
        )
        return title, rows


def predict(
    model: Transformer | Chain,
    cluster: Cluster,
    layout: Layout,
    global_batch: int,
    *,
    examples_per_second: float = 0,
    constants: Calibration | None = None,
) -> Prediction:
    """Memory and time of one training step in one layout.

    model                a Transformer by numbers (trained with Adam), or a chain, such as from_keras() makes
    examples_per_second  that the input pipeline delivers; 0 for enough
    constants            the fitted ones by default
    Raises               CourseError when the layout does not multiply to the chips, the batch
                         does not divide, or the chip lacks the precision
    """
    chain, constants = model.chain() if isinstance(model, Transformer) else model, constants or fitted()
    if layout.chips != cluster.chips:
        raise CourseError(
            f"data {layout.data} x tensor {layout.tensor} x pipeline {layout.pipeline} x sequence {layout.sequence} takes "
            f"{layout.chips} chips and the cluster has {cluster.chips}: their product must be {cluster.chips}."
        )
    if cluster.chip.family == TPU and cluster.chips > cluster.chip.per_node:
        raise CourseError(
            f"a slice of {cluster.chip.name} has at most {cluster.chip.per_node:,} chips, and several slices are not planned."
        )
    if layout.interleave > 1 and (layout.pipeline == 1 or chain.layers % (layout.pipeline * layout.interleave)):
        raise CourseError(
            f"{chain.layers} layers can't be cut into {layout.interleave} chunks for each of {layout.pipeline} pipeline stages: "
            f"take 2 stages or more, and a product that divides the layers."
        )
    if chain.heads % layout.tensor:
        raise CourseError(
            f"{layout.tensor} tensor-parallel devices can't share {chain.heads} heads: take a divisor of {chain.heads}."
        )
    need, around_memory, step, around_step = _figures(model, chain, cluster, layout, global_batch, constants)
    step = with_input(step, global_batch, examples_per_second)
    between = lambda total, around: tuple(total * side for side in around)  # noqa: E731
    intervals = between(need.total, around_memory), between(step.total, around_step)
    return Prediction(chain, cluster, layout, global_batch, need, step, *intervals)


def _figures(model, chain: Chain, cluster: Cluster, layout: Layout, global_batch: int, constants: Calibration):
    """Memory and time, each with what measured over predicted lies between."""
    around_memory, around_step = (
        (constants.memory_low, constants.memory_high),
        (constants.time_low, constants.time_high),
    )
    if cluster.measured:
        from course_lib.planner import measured_machine  # needs TensorFlow

        # The allocator that is played through is the CPU's; a GPU's memory is counted by the formulas.
        need = (
            measured_machine.memory(chain, cluster, layout, global_batch)
            if cluster.shared
            else memory(chain, layout, global_batch, constants)
        )
        return (
            need,
            measured_machine.MEMORY_AROUND,
            measured_machine.step_time(chain, cluster, layout, global_batch),
            measured_machine.TIME_AROUND,
        )
    step = step_time(chain, cluster, layout, global_batch, constants)
    if cluster.chip.family != TPU:
        return memory(chain, layout, global_batch, constants), around_memory, step, around_step
    if tpu_memory.compilable(model, layout):
        return tpu_memory.compiled_memory(model, layout, global_batch), tpu_memory.AROUND, step, around_step
    need = replace(memory(chain, layout, global_batch, constants), framework=tpu_memory.RESERVED_BYTES)
    return need, around_memory, step, around_step


def in_bytes(size: float) -> str:
    unit, name = next(
        ((unit, name) for unit, name in ((GIB, "GiB"), (2**20, "MiB")) if size >= unit / 10), (2**10, "KiB")
    )
    return f"{size / unit:,.3g} {name}"


def in_seconds(time: float) -> str:
    return f"{time:,.3g} s" if time >= 1 else f"{time * 1e3:,.3g} ms"


def _in_count(numbers: int) -> str:
    return f"{numbers / 1e9:,.3g} billion" if numbers >= 1e9 else f"{numbers:,}"
