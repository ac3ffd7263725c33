"""The smallest change that makes a step fit, found by compiling one change after the other. Standard library only."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from course_lib.errors import CourseError
from course_lib.tpu.chips import doubled
from course_lib.tpu.compile_report import Report
from course_lib.tpu.compile_request import BATCH_AXIS, Request, checked
from course_lib.tpu.compiling import compile_request

MICRO_BATCHES = (2, 4, 8)
DOUBLINGS = 3


@dataclass(frozen=True, repr=False)
class Trial:
    """One change and what the compiler made of it; `report` is None where trying could not help, and `reason` says why."""

    change: str
    report: Report | None
    reason: str = ""

    @property
    def fits(self) -> bool:
        return self.report is not None and self.report.fits

    def __repr__(self) -> str:
        return f"{self.change}: {self.report.verdict if self.report else self.reason}"


@dataclass(frozen=True, repr=False)
class Search:
    """What was tried, in order; the last trial fits if any does."""

    trials: tuple[Trial, ...]

    @property
    def found(self) -> Trial | None:
        return next((trial for trial in self.trials if trial.fits), None)

    def __repr__(self) -> str:
        lines = [f"  {trial!r}" for trial in self.trials]
        answer = (
            f"The smallest change that fits: {self.found.change}."
            if self.found
            else "None of these changes alone makes it fit."
        )
        return "\n".join(["Tried by compiling, one change at a time:", *lines, answer])

    def as_dict(self) -> dict:
        trials = [
            {"change": t.change, "reason": t.reason, "report": t.report and t.report.as_dict()} for t in self.trials
        ]
        return {"found": self.found and self.found.change, "trials": trials}


def find_fit(refused: Report, show: Callable[[str], None] = lambda words: None) -> Search:
    """Try changes to a step that does not fit, those first that ask for the least, until one fits.

    In this order: bfloat16 arithmetic, remat, accumulation over 2, 4 and 8
    micro-batches, fsdp, and twice, four and eight times the chips on one axis.
    The first three leave the state's size alone, so they are not compiled
    where the state alone is larger than the memory.
    """
    trials = []
    for change, request, reason in _changes(refused):
        show(f"trying {change}")
        trials.append(Trial(change, None, reason) if reason else Trial(change, compile_request(request, show)))
        if trials[-1].fits:
            break
    return Search(tuple(trials))


def _changes(refused: Report) -> Iterator[tuple[str, Request, str]]:
    request = refused.request
    memory = request.slice.device_memory_bytes
    too_large = (
        f"not tried, the state alone takes {refused.state_bytes:,} of {memory:,} B"
        if refused.state_bytes > memory
        else ""
    )
    if request.precision == "float32":
        yield "precision mixed_bfloat16", replace(request, precision="mixed_bfloat16"), too_large
    if not request.remat:
        yield "remat", replace(request, remat=True), too_large
    for count in MICRO_BATCHES:
        more = replace(request, accumulation=request.accumulation * count)
        yield f"accumulation over {more.accumulation}", more, too_large or _mistake(more)
    if request.layout != "fsdp" and request.mesh.get(BATCH_AXIS, 1) > 1:
        yield "layout fsdp", replace(request, layout="fsdp"), ""
    for axis in request.mesh:
        for more in _more_chips(request, axis):
            yield f"{more.topology} with {axis}={more.mesh[axis]}", more, _mistake(more)


def _more_chips(request: Request, axis: str) -> Iterator[Request]:
    for _ in range(DOUBLINGS):
        larger = doubled(request.slice)
        if larger is None:
            return
        request = replace(request, topology=str(larger), mesh={**request.mesh, axis: 2 * request.mesh[axis]})
        yield request


def _mistake(request: Request) -> str:
    try:
        checked(request)
    except CourseError as error:
        return f"not tried, {error}"
    return ""
