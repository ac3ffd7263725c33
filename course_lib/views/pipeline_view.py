"""A pipeline's schedule, its bubble and its memory. Needs matplotlib when it is shown; used in notebooks/06."""

from fractions import Fraction

from course_lib import pipeline as schedules
from course_lib.views.controls import Choice, Range
from course_lib.views.explorer import View, explorer

CHUNKS = 2  # of each stage, when interleaved
MAKERS = {
    "naive": schedules.naive,
    "GPipe": schedules.gpipe,
    "1F1B": schedules.one_forward_one_backward,
    "interleaved": lambda stages, micro_batches: schedules.interleaved(stages, micro_batches, CHUNKS),
}


def bubble(schedule: str, stages: int, micro_batches: int) -> Fraction:
    """The idle share of equal stages, by lesson 06's formulas."""
    if schedule == "naive":
        return Fraction(stages - 1, stages)
    chunks = CHUNKS if schedule == "interleaved" else 1
    return Fraction(stages - 1, chunks * micro_batches + stages - 1)


def _group(values) -> int:
    """Interleaving takes micro-batches in groups, one for each stage."""
    return values["stages"] if values["schedule"] == "interleaved" else 1


@explorer(
    schedule=Choice("schedule", tuple(MAKERS)),
    stages=Range("stages", 2, 6),
    micro_batches=Range("micro-batches", _group, 12, _group, ahead=(2, 4, 6, 8, 10, 12)),
)
def pipeline(schedule: str = "1F1B", stages: int = 4, micro_batches: int = 8) -> View:
    """What each stage does when, the share of time in which it is idle, and the micro-batches that it holds.

    schedule       "naive", "GPipe", "1F1B", or "interleaved" with two chunks per stage
    stages         p, 2 to 6
    micro_batches  m, 1 to 12; interleaved, a multiple of p
    """
    from course_lib import show

    timeline = MAKERS[schedule](stages, micro_batches).timeline()
    chunks = CHUNKS if schedule == "interleaved" else 1
    held = [count / chunks for count in timeline.peak_in_flight]  # a chunk holds its share of a stage's activations
    formula = bubble(schedule, stages, micro_batches)
    halves = ", counted in whole stages (a chunk is half of one)" if chunks > 1 else ""
    caption = (
        f"{timeline.name}, {stages} stages, {micro_batches} micro-batches: {timeline.bubble:.1%} of the time is idle, "
        f"as the formula's {formula} says, and the fullest stage "
        f"holds the activations of {max(held):g} micro-batches at once{halves}."
    )
    rows = [
        [f"stage {stage}", f"{idle / timeline.total:.1%}", f"{most:g}", f"{most / micro_batches:.0%}"]
        for stage, (idle, most) in enumerate(zip(timeline.idle, held))
    ]
    headers = ("", "idle", "micro-batches held", "of the batch")
    return View(show.timelines({timeline.name: timeline}, caption), headers, rows)
