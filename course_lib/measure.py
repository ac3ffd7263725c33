"""How long a step takes, without fooling yourself. Standard library only; taught in notebooks/01.

It waits for TensorFlow's and JAX's results without importing them. The first
calls trace and compile, so they are thrown away; the rest vary, so you get a
median and a spread; and two programs are timed in turns, so that a machine that
slows down slows both.
"""

import ctypes
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.table import Table

FEWEST_REPEATS = 3
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt(3), in bytes: more lies free, or larger blocks, go back at once


@dataclass(frozen=True, repr=False)  # a notebook shows the text below, not twenty raw times
class Timing:
    """Repeated times of one step.

    seconds  one per repeat, in the order measured, warm-up left out
    """

    name: str
    seconds: tuple[float, ...]

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range over median: how much the middle half of the repeats varies."""
        low, high = _middle_half(self.seconds)
        return (high - low) / self.median_seconds

    def __repr__(self) -> str:
        return (
            f"{self.name or 'step'}: median {self.median_seconds * 1e3:.3g} ms of {len(self.seconds)} repeats, "
            f"the middle half within {self.spread:.0%}"
        )


@dataclass(frozen=True, repr=False)
class Race:
    """Steps timed in turns; shows each one's time relative to the first."""

    timings: tuple[Timing, ...]

    def ratio(self, name: str, to: str) -> float:
        """Time of `name` over time of `to`: the median over rounds, both measured in the same round."""
        return statistics.median(self._ratios(name, to))

    def _ratios(self, name: str, to: str) -> list[float]:
        seconds = {timing.name: timing.seconds for timing in self.timings}
        return [one / other for one, other in zip(seconds[name], seconds[to], strict=True)]

    def _table(self) -> Table:
        first = self.timings[0].name
        rows = []
        for timing in self.timings:
            low, high = _middle_half(self._ratios(timing.name, first))
            rows.append((timing.name, f"{self.ratio(timing.name, first):.2f}x", f"{low:.2f}x to {high:.2f}x"))
        return Table(("", f"time / {first}", "middle half of the rounds"), rows)

    def __repr__(self) -> str:
        return repr(self._table())

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()


@dataclass(frozen=True, repr=False)
class StepSplit:
    """Seconds per step of the input alone, of the step alone, and of the real loop.

    input_seconds     pulling batches, with nobody computing
    step_seconds      the step, on one batch that it already holds
    together_seconds  the loop that does both
    """

    input_seconds: float
    step_seconds: float
    together_seconds: float

    @property
    def bottleneck(self) -> str:
        """The one that the loop waits for: "input" or "step"."""
        return "input" if self.input_seconds > self.step_seconds else "step"

    @property
    def overlap(self) -> float:
        """Share of the shorter part that is hidden behind the longer: 0 one after the other, 1 wholly hidden."""
        hidden = self.input_seconds + self.step_seconds - self.together_seconds
        return min(1.0, max(0.0, hidden / min(self.input_seconds, self.step_seconds)))

    def __repr__(self) -> str:
        parts = (self.input_seconds, self.step_seconds, self.together_seconds)
        input_share, step_share, whole = (f"{seconds / self.together_seconds:5.2f}x" for seconds in parts)
        return (
            f"input alone  {input_share}  pulling batches while nobody computes\n"
            f"step alone   {step_share}  computing on a batch that it already holds\n"
            f"together     {whole}  the real loop; the sum of both when nothing overlaps\n"
            f"bottleneck: {self.bottleneck}"
        )


def time_step(step: Callable[[], object], *, warmup: int = 3, repeats: int = 20, name: str = "") -> Timing:
    """Time `step()` in its steady state, until its result is really there.

    warmup   calls before the first that counts: tracing, compiling, filling caches
    repeats  calls that count
    Raises   CourseError for fewer than 3 repeats: a single time says nothing
    """
    return side_by_side({name: step}, warmup=warmup, repeats=repeats).timings[0]


def side_by_side(steps: Mapping[str, Callable[[], object]], *, warmup: int = 3, repeats: int = 20) -> Race:
    """Time several steps in turns, A B A B, so that whatever slows the machine slows all alike.

    steps   name to a call without arguments
    Raises  CourseError for no steps, or for fewer than 3 repeats
    """
    if not steps:
        raise CourseError("side_by_side() got no steps: pass a dict of names to calls without arguments.")
    if repeats < FEWEST_REPEATS:
        raise CourseError(f"{repeats} repeat(s) can't tell a time from its noise: use {FEWEST_REPEATS} or more.")
    for step in steps.values():
        for _ in range(warmup):
            wait(step())
    rounds = [[_seconds(step) for step in steps.values()] for _ in range(repeats)]
    return Race(tuple(Timing(name, seconds) for name, seconds in zip(steps, zip(*rounds))))


def split_step(
    dataset: Iterable, step: Callable[[object], object], *, warmup: int = 5, steps: int = 20, passes: int = 5
) -> StepSplit:
    """Where a training loop's time goes: measured apart, then together.

    Where input and step share the same cores, neither hides behind the other,
    and `together_seconds` is close to their sum.

    dataset  yields batches; started again when it ends
    step     takes one batch
    warmup   untimed batches before each pass; they use up what was prefetched meanwhile
    steps    timed batches of a pass; the three kinds of pass take turns
    passes   passes of each kind; the median pass counts
    Raises   CourseError when the data set yields nothing
    """
    alone, fed = _endless(dataset), _endless(dataset)
    held = next(alone)
    works = {"input": lambda: next(alone), "step": lambda: step(held), "together": lambda: step(next(fed))}
    per_step = {kind: [] for kind in works}
    for _ in range(passes):
        for kind, work in works.items():
            _seconds(work, warmup)
            per_step[kind].append(_seconds(work, steps) / steps)
    return StepSplit(*(statistics.median(seconds) for seconds in per_step.values()))


def peak_memory_bytes(call: Callable[[], object]) -> int:
    """Host memory that `call()` needs on top of what this process holds already, at its highest.

    Linux's own high-water mark, set back before the call, less the pages of files
    that the call met first: code of libraries, for the same step 10 MiB on one
    machine and 30 on another. Pages that the call met after the peak are subtracted
    too, so let a short call repeat its work. glibc keeps no freed memory from the first
    call on, which costs time; what another allocator has kept from earlier is reused and
    doesn't show. So measure in a process of its own, and the larger case first. Device
    memory doesn't count.

    Raises CourseError where the kernel has no such mark
    """
    mark, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    try:
        reset.write_text("5")
    except OSError:
        raise CourseError(
            "peak_memory_bytes() reads Linux's high-water mark, which this machine does not offer."
        ) from None
    _give_freed_memory_back()
    reset.write_text("5")  # after what has just been given back
    held_bytes, file_bytes = (_status_bytes(mark, field) for field in ("VmRSS", "RssFile"))
    wait(call())
    met_bytes = max(0, _status_bytes(mark, "RssFile") - file_bytes)
    return max(0, _status_bytes(mark, "VmHWM") - met_bytes - held_bytes)


def _give_freed_memory_back() -> None:
    """glibc's free memory, now and from now on: it keeps some by the order in which threads free it."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.malloc_trim(0)
        libc.mallopt(MMAP_THRESHOLD, 2**16)
        libc.mallopt(TRIM_THRESHOLD, 2**16)


def wait(result: object) -> None:
    """Return when every array in a (nested) result has been computed, on whatever device."""
    if isinstance(result, Mapping):
        result = list(result.values())
    elif isinstance(getattr(result, "values", None), tuple):  # one value per replica
        result = result.values
    if isinstance(result, (list, tuple)):
        for part in result:
            wait(part)
    elif hasattr(result, "block_until_ready"):
        result.block_until_ready()
    elif hasattr(result, "numpy"):
        result.numpy()


def _seconds(step: Callable[[], object], times: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(times):
        wait(step())
    return time.perf_counter() - start


def _endless(dataset: Iterable) -> Iterator:
    while True:
        empty = True
        for batch in dataset:
            empty = False
            yield batch
        if empty:
            raise CourseError(
                "The data set yields no batch: is the batch larger than the data set, with drop_remainder?"
            )


def _middle_half(values) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _status_bytes(status: Path, field: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
