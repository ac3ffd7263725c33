"""A number of yours in six formats. Needs ml_dtypes and matplotlib when it is shown; used in notebooks/09."""

import math

from course_lib.views.controls import Choice, LogRange
from course_lib.views.explorer import View, explorer

FORMATS = ("float32", "tf32", "bfloat16", "float16", "float8_e5m2", "float8_e4m3fn")
AHEAD = (
    1e-46,
    1e-40,
    1e-8,
    1e-7,
    1e-5,
    0.001,
    0.1,
    1.0,
    3.0,
    300.0,
    65_520.0,
    70_000.0,
    1e6,
    1e39,
)  # where outcomes change
NEIGHBOURS, MOST_TICKS = 4, 200


def outcome(one, value: float) -> str:
    """What a value above 0 becomes in a `precision.Format`, in a word or two."""
    kept = float(one.round(value))
    if math.isinf(kept):
        return "overflow to infinity"
    if math.isnan(kept):
        return "overflow to NaN"
    if kept == 0:
        return "underflow to 0"
    return ("subnormal, " if kept < one.smallest_normal else "") + ("exact" if kept == value else "rounded")


def spacing(one, value: float) -> float:
    """From the number that the value becomes to the next larger one; at the end of the range, to the next smaller."""
    kept = float(one.round(value))
    line = one.line(kept if kept <= one.largest else one.largest, 1)
    return line[-1] - line[-2]


@explorer(format=Choice("format", FORMATS), value=LogRange("value", 1e-46, 1e39, AHEAD))
def formats(format: str = "float16", value: float = 0.1) -> View:
    """A value as each format keeps it, and the numbers that they have around it.

    format  the format shown in the picture
    value   from 1e-46, below every format's smallest number, to 1e39, above every largest
    """
    from course_lib import precision, show

    chosen = precision.find(format)
    near = chosen.line(min(value, chosen.largest), NEIGHBOURS)
    low, high = max(near[0], 0.0), near[-1]
    ticks = {}
    for name in FORMATS:
        one = precision.find(name)
        line = [number for number in one.line(min(value, one.largest), MOST_TICKS) if low <= number <= high]
        dense = len(line) > MOST_TICKS
        ticks[f"{name}, too many" if dense else name] = [] if dense else line
    rows = [_row(precision.find(name), value) for name in FORMATS]
    kept = float(chosen.round(value))
    off = f", off by {abs(kept - value) / value:.2g} of itself" if 0 < kept < math.inf else ""
    caption = (
        f"{value:.6g} in {format} is {kept:.6g}{off}: {outcome(chosen, value)}. "
        f"Its numbers are {spacing(chosen, value):.3g} apart there, and go from {chosen.smallest_subnormal:.3g} "
        f"to {chosen.largest:.6g}. Dashed: your value; ticks: the numbers around it."
    )
    headers = ("", "becomes", "which is", "error", "spacing there", "smallest", "largest")
    return View(show.number_lines(ticks, "value", caption, mark=value), headers, rows)


def _row(one, value: float) -> list[str]:
    kept = float(one.round(value))
    error = f"{abs(kept - value) / value:.1e}" if math.isfinite(kept) else "-"
    limits = f"{one.smallest_subnormal:.2g}", f"{one.largest:.3g}"
    return [one.name, f"{kept:.6g}", outcome(one, value), error, f"{spacing(one, value):.2g}", *limits]
