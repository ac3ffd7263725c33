"""When a pipeline's stages worked, planned or measured. Standard library only; taught in notebooks/06."""

from collections.abc import Iterable
from dataclasses import dataclass

FORWARD, BACKWARD = "forward", "backward"
WIDEST = 120  # columns of a printed timeline


@dataclass(frozen=True, order=True)
class Work:
    """A stage's forward or backward of one micro-batch in one of its chunks; prints as F3, or B3.1 in chunk 1."""

    kind: str
    micro_batch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.kind[0].upper()}{self.micro_batch}" + (f".{self.chunk}" if self.chunk else "")


@dataclass(frozen=True)
class Slot:
    """A piece of work and its time, in the timeline's unit."""

    stage: int
    work: Work
    start: float
    end: float


@dataclass(frozen=True, repr=False)
class Timeline:
    """What every stage did when; prints as one row per stage, idle time as dots.

    name   what a reader calls it
    slots  in any order and any unit of time; several processes' slots must come from one clock
    """

    name: str
    slots: tuple[Slot, ...]

    @property
    def stages(self) -> int:
        return 1 + max(slot.stage for slot in self.slots)

    @property
    def start(self) -> float:
        return min(slot.start for slot in self.slots)

    @property
    def total(self) -> float:
        """From the first start to the last end."""
        return max(slot.end for slot in self.slots) - self.start

    @property
    def idle(self) -> tuple[float, ...]:
        """Time of the total in which each stage did nothing."""
        return tuple(self.total - sum(slot.end - slot.start for slot in self.of(stage)) for stage in range(self.stages))

    @property
    def bubble(self) -> float:
        """Idle share of all stages' time."""
        return sum(self.idle) / (self.stages * self.total)

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """The most micro-batches of which each stage holds activations at once: forward done, backward not yet.

        A micro-batch counts once in each chunk, and a chunk holds a v-th of a stage's activations.
        """
        return tuple(max(self.in_flight(stage)) for stage in range(self.stages))

    def in_flight(self, stage: int) -> list[int]:
        """How many micro-batches the stage holds during each of its slots, in order of time."""
        held, counts = 0, []
        for slot in self.of(stage):
            held += slot.work.kind == FORWARD
            counts.append(held)
            held -= slot.work.kind == BACKWARD
        return counts

    def of(self, stage: int) -> list[Slot]:
        """One stage's slots in order of time."""
        return sorted((slot for slot in self.slots if slot.stage == stage), key=lambda slot: slot.start)

    def __repr__(self) -> str:
        micro_batches = len({slot.work.micro_batch for slot in self.slots})
        head = f"{self.name}: {self.stages} stage(s), {micro_batches} micro-batch(es), {self.bubble:.1%} idle"
        shortest = min(slot.end - slot.start for slot in self.slots)
        widest = max(len(str(slot.work)) for slot in self.slots) + 1
        columns = min(widest / shortest if shortest else WIDEST, WIDEST / self.total)  # per unit of time
        if columns * shortest > 1:
            columns = int(columns * shortest) / shortest  # planned times then fall on whole columns
        held = self.peak_in_flight
        rows = (f"stage {stage}  {self._row(stage, columns)}  holds {held[stage]}" for stage in range(self.stages))
        return "\n".join([head, *rows])

    def _row(self, stage: int, columns: float) -> str:
        row = ["."] * round(self.total * columns)
        for slot in self.of(stage):
            first, end = (round((time - self.start) * columns) for time in (slot.start, slot.end))
            row[first:end] = (str(slot.work).ljust(end - first - 1, "-") + " ")[: end - first]
        return "".join(row)


def gather(name: str, slots_of_stages: Iterable[Iterable[Slot]]) -> Timeline:
    """One timeline from the slots that each stage measured."""
    return Timeline(name, tuple(slot for slots in slots_of_stages for slot in slots))
