"""Charts: figures of numbers, each with a caption that states its finding. Needs matplotlib; used by all lessons."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from course_lib.show.figure import COLOURS, INK, PAPER, WIDTH_INCHES, Figure, panels, styled

MARKERS = "osD^vPX*"
HATCHES = ("", "///", "|||", "xxx", "\\\\\\", "---", "+++", "//")  # a second cue beside the colour, where areas touch
FEW = 8  # so many different numbers on an axis have a tick each

# One colour, one meaning, in all lessons: what a name means decides, not the row that it stands in.
MEANINGS = {
    "float32": COLOURS[0],
    "tf32": COLOURS[4],
    "bfloat16": COLOURS[2],
    "float16": COLOURS[3],
    "float8_e4m3fn": COLOURS[5],
    "float8_e5m2": COLOURS[6],
    "weights": COLOURS[0],
    "parameters": COLOURS[0],
    "gradients": COLOURS[1],
    "optimizer": COLOURS[2],
    "activations": COLOURS[5],
    "temporaries": COLOURS[6],
    "framework": "#888888",
    "compute": COLOURS[4],
    "memory": "#882255",
    "tensor": "#44AA99",
    "data": "#DDCC77",
    "bubble": COLOURS[3],
    "overhead": "#BBBBBB",
    "input": "#6A5ACD",
}


@styled
def bars(
    values: Mapping[str, float], unit: str, caption: str, reference: Mapping[str, float] | None = None, digits: int = 3
) -> Figure:
    """Horizontal bars, one per name, each labelled with its value.

    values     name to height, in `unit`
    reference  name to a value to draw as a dashed line, in `unit`
    digits     as many as the numbers are good for; whole numbers keep all of theirs
    """
    whole = all(float(value).is_integer() for value in values.values())
    canvas, (axes,) = panels(1, 0.3 * len(values) + 0.7 + 0.2 * bool(reference))
    drawn = axes.barh(list(values), list(values.values()), color=COLOURS[0], height=0.6)
    axes.bar_label(drawn, [f"{v:,.0f}" if whole else _number(v, digits) for v in values.values()], padding=4)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.margins(x=0.15)
    if whole:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    for name, value in (reference or {}).items():
        axes.axvline(value, color=COLOURS[3], linestyle="--", zorder=0)  # behind the bars' own numbers
        _over(axes, value, name)
    return Figure(canvas, caption)


@styled
def lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    xlabel: str,
    ylabel: str,
    caption: str,
    log: str = "",
    marks: Mapping[str, float] | None = None,
) -> Figure:
    """One line per name through its (xs, ys).

    xlabel, ylabel  name the quantity and its unit
    log             which axes are logarithmic: "y" where growth is the point, or "xy"
    marks           name to an x to mark by an upright line
    """
    canvas, (axes,) = panels(1, 2.7)
    for place, (name, (xs, ys)) in enumerate(series.items()):
        style = {"color": MEANINGS.get(name, COLOURS[place % len(COLOURS)]), "marker": MARKERS[place % len(MARKERS)]}
        # an earlier line is wider, so that one drawn over it does not hide it
        style |= {"linewidth": 1.2 + 0.9 * (len(series) - 1 - place), "markevery": max(1, len(xs) // 20)}
        axes.plot(xs, ys, markersize=4, label=name, **style)
    axes.set(xlabel=xlabel, ylabel=textwrap.fill(ylabel, 32))
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
    _tick_each(axes.xaxis, [x for xs, _ in series.values() for x in xs], "x" in log)
    for name, x in (marks or {}).items():
        axes.axvline(x, color=INK, linestyle=":", linewidth=1.2)
        _over(axes, x, name)
    if len(series) > 1:
        axes.legend()
    return Figure(canvas, caption)


@styled
def images(pictures, titles: Sequence[str], caption: str) -> Figure:
    """A row of grey or colour images.

    pictures  (n, height, width, channels) in [0, 1], or channels dropped
    """
    canvas = Canvas(figsize=(WIDTH_INCHES, WIDTH_INCHES / max(4, len(titles)) + 0.15), layout="constrained")
    for axes, picture, title in zip(canvas.subplots(1, len(titles), squeeze=False)[0], pictures, titles):
        axes.imshow(picture.squeeze(), cmap="gray_r", vmin=0, vmax=1, interpolation="none")
        axes.set_title(title, fontsize=8.5)
        axes.axis("off")
    return Figure(canvas, caption)


@styled
def number_lines(
    lines: Mapping[str, Sequence[float]], xlabel: str, caption: str, log: bool = False, mark: float | None = None
) -> Figure:
    """One row of ticks per name, a tick for each number, on one axis.

    log   the axis is logarithmic with base 2, and takes numbers above zero
    mark  a number to draw as a dashed line through all rows
    """
    canvas, (axes,) = panels(1, 0.32 * len(lines) + 0.6)
    colours = [MEANINGS.get(name, COLOURS[row % len(COLOURS)]) for row, name in enumerate(lines)]
    axes.eventplot(list(lines.values()), lineoffsets=range(len(lines)), linelengths=0.6, linewidths=1, colors=colours)
    axes.set_yticks(range(len(lines)), list(lines))
    axes.invert_yaxis()
    axes.set_xlabel(xlabel)
    if mark is not None:
        axes.axvline(mark, color=INK, linestyle="--", linewidth=1)
    if log:
        axes.set_xscale("log", base=2)
        _tick_powers_of_two(axes.xaxis, np.log2([number for row in lines.values() for number in row]))
    return Figure(canvas, caption)


@styled
def plans(drawn: Mapping[str, object], caption: str = "") -> Figure:
    """`planner.Prediction`s as stacked bars: memory by kind, the device's limit dashed, and the step's time by kind.

    drawn    title to prediction
    caption  by default, each one's memory and time in words
    """
    wrapped = {textwrap.fill(title, 18): prediction for title, prediction in drawn.items()}
    row_inches = max(0.5, *(0.17 * (title.count("\n") + 1) for title in wrapped))
    canvas, sides = panels(2, row_inches * len(drawn) + 1.0, columns=1)
    memories = {title: {kind: size / 2**30 for kind, size in p.memory.kinds.items()} for title, p in wrapped.items()}
    _stacked(sides[0], memories, "memory of a device, GiB")
    for row, prediction in enumerate(drawn.values()):
        limit = prediction.cluster.chip.memory_bytes / 2**30
        sides[0].vlines(limit, row - 0.4, row + 0.4, color=INK, linestyle="--")
    _stacked(sides[1], {title: p.step.kinds for title, p in wrapped.items()}, "a step, seconds")
    if not caption:
        sizes = [f"{p.memory.total / 2**30:,.3g} GiB, {p.step.total:,.3g} s, {p.verdict}" for p in drawn.values()]
        words = "; ".join(f"{title}: {size}" for title, size in zip(drawn, sizes))
        caption = f"{words}. Dashed: the device's memory."
    return Figure(canvas, caption)


@styled
def stack(parts: Mapping[str, float], unit: str, limit: float, caption: str) -> Figure:
    """One bar of named parts, each with its own colour and hatch, against a limit.

    parts  name to width, in `unit`; parts of 0 are left out
    limit  in `unit`: a dashed line, with its value
    """
    canvas, (axes,) = panels(1, 1.7)
    _stacked(axes, {"": parts}, unit)
    axes.axvline(limit, color=INK, linestyle="--", linewidth=2)
    axes.annotate(f"limit {limit:,.4g}", (limit, 0.52), (4, 0), textcoords="offset points", va="center")
    axes.set(xlim=(0, 1.25 * max(limit, sum(parts.values()))), ylim=(0.65, -0.4), yticks=[])
    return Figure(canvas, caption)


@styled
def stacks(bars: Mapping[str, Mapping[str, float]], unit: str, caption: str) -> Figure:
    """Bars of named parts below each other, each with its total.

    bars  title to its parts, name to width in `unit`; the same names in each
    """
    canvas, (axes,) = panels(1, 0.36 * len(bars) + 1.0)
    _stacked(axes, bars, unit)
    for row, parts in enumerate(bars.values()):
        axes.text(sum(parts.values()), row, f" {_number(sum(parts.values()), 3)}", va="center")
    axes.margins(x=0.12)
    return Figure(canvas, caption)


def _stacked(axes, bars: Mapping[str, Mapping[str, float]], xlabel: str) -> None:
    """Horizontal bars of named parts, one bar per title; a part that is 0 in all bars is left out."""
    kinds = [kind for kind in next(iter(bars.values())) if any(parts[kind] for parts in bars.values())]
    left = [0.0] * len(bars)
    for place, kind in enumerate(kinds):
        widths = [parts[kind] for parts in bars.values()]
        colour = MEANINGS.get(kind, COLOURS[place % len(COLOURS)])
        style = {"color": colour, "hatch": HATCHES[place % len(HATCHES)], "edgecolor": PAPER, "height": 0.6}
        axes.barh(range(len(bars)), widths, left=left, label=kind, **style)
        left = [start + width for start, width in zip(left, widths)]
    axes.set_yticks(range(len(bars)), bars)
    axes.invert_yaxis()
    axes.set_xlabel(xlabel)
    axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1))


def _number(value: float, digits: int) -> str:
    """1,234 and 0.0012 rather than 1.23e+03 and 0.00123 at two digits."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 ** (digits - 1) else f"{rounded:.{digits}g}"


def _over(axes, x: float, name: str) -> None:
    """A line's name, above the picture."""
    axes.annotate(name, (x, 1), (0, 2), ("data", "axes fraction"), "offset points", ha="center", va="bottom")


def _tick_each(axis, numbers: Sequence[float], log: bool) -> None:
    """Ticks where the measurements are, when they are few; whole ones where all numbers are whole."""
    different = sorted(set(map(float, numbers)))
    if len(different) <= FEW:
        axis.set_major_locator(FixedLocator(different))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if float(x).is_integer() else f"{x:.4g}"))
    elif not log and all(number.is_integer() for number in different):
        axis.set_major_locator(MaxNLocator(8, integer=True))


def _tick_powers_of_two(axis, exponents: np.ndarray) -> None:
    """At most ten ticks, whose exponents are multiples of a power of two."""
    least, most = exponents.min(), exponents.max()
    stride = 2 ** max(0, int(np.ceil(np.log2((most - least) / 9 or 1))))
    axis.set_major_locator(FixedLocator(2.0 ** np.arange(stride * np.ceil(least / stride), most + 1, stride)))
    axis.set_minor_locator(NullLocator())
