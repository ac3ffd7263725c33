"""Charts: figures of numbers, each with a caption that states its finding. Needs matplotlib; used by all lessons."""

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

# Okabe & Ito (2008): eight colours that colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#000000")
MARKERS = "osD^vPX*"
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "+++", "ooo")  # a second cue beside the colour, where areas touch


class Figure:
    """A drawn canvas and the caption that carries its finding."""

    def __init__(self, canvas: Canvas, caption: str):
        self.canvas = canvas
        self.caption = caption

    def __repr__(self) -> str:
        return f"Figure: {self.caption}"

    def html(self, dpi: int = 110) -> str:
        """The picture and its caption as a part of a page, which loads no other file."""
        picture, before = io.BytesIO(), self.canvas.dpi
        self.canvas.set_dpi(dpi)
        try:
            FigureCanvasAgg(self.canvas).print_png(picture)  # savefig would draw twice, for the layout and for the file
        finally:
            self.canvas.set_dpi(before)
        data, caption = base64.b64encode(picture.getvalue()).decode(), escape(self.caption)
        image = f'<img alt="{caption}" src="data:image/png;base64,{data}">'
        return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"

    def _repr_mimebundle_(self, include=None, exclude=None):
        """IPython's hook: the picture with its alternative text, and the caption below for everyone."""
        picture = io.BytesIO()
        self.canvas.text(0.5, -0.02, self.caption, ha="center", va="top", fontsize=9, wrap=True)
        self.canvas.savefig(picture, format="png", dpi=110, bbox_inches="tight")
        self.canvas.texts.pop()
        return {"text/plain": repr(self), "image/png": picture.getvalue()}, {"image/png": {"alt": self.caption}}


def bars(values: Mapping[str, float], unit: str, caption: str, reference: float | None = None) -> Figure:
    """Horizontal bars, one per name, each labelled with its value.

    values     name to height, in `unit`
    reference  a value to draw as a dashed line, in `unit`
    """
    canvas, axes = _axes(height=0.45 * len(values) + 0.9)
    drawn = axes.barh(list(values), list(values.values()), color=COLOURS[0], height=0.6)
    axes.bar_label(drawn, [f"{value:,.4g}" for value in values.values()], padding=4)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.margins(x=0.15)
    if reference is not None:
        axes.axvline(reference, color=COLOURS[3], linestyle="--")
    return Figure(canvas, caption)


def lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    xlabel: str,
    ylabel: str,
    caption: str,
    log: bool = False,
) -> Figure:
    """One line per name through its (xs, ys).

    xlabel, ylabel  name the quantity and its unit
    log             both axes logarithmic
    """
    canvas, axes = _axes(height=3.2)
    for (name, (xs, ys)), colour, marker in zip(series.items(), COLOURS, MARKERS):
        axes.plot(xs, ys, color=colour, marker=marker, markersize=4, label=name)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if log:
        axes.set(xscale="log", yscale="log")
    axes.legend(frameon=False)
    return Figure(canvas, caption)


def images(pictures, titles: Sequence[str], caption: str) -> Figure:
    """A row of grey or colour images.

    pictures  (n, height, width, channels) in [0, 1], or channels dropped
    """
    canvas = Canvas(figsize=(1.1 * len(titles), 1.4))
    for axes, picture, title in zip(panels(canvas, len(titles)), pictures, titles):
        axes.imshow(picture.squeeze(), cmap="gray_r", vmin=0, vmax=1)
        axes.set_title(title, fontsize=9)
        axes.axis("off")
    return Figure(canvas, caption)


def number_lines(
    lines: Mapping[str, Sequence[float]], xlabel: str, caption: str, log: bool = False, mark: float | None = None
) -> Figure:
    """One row of ticks per name, a tick for each number, on one axis.

    log   the axis is logarithmic with base 2, and takes numbers above zero
    mark  a number to draw as a dashed line through all rows
    """
    canvas, axes = _axes(height=0.4 * len(lines) + 0.8)
    colours = [COLOURS[row % len(COLOURS)] for row in range(len(lines))]
    axes.eventplot(list(lines.values()), lineoffsets=range(len(lines)), linelengths=0.6, linewidths=1.2, colors=colours)
    axes.set_yticks(range(len(lines)), list(lines))
    axes.invert_yaxis()
    axes.set_xlabel(xlabel)
    if mark is not None:
        axes.axvline(mark, color="black", linestyle="--", linewidth=1)
    if log:
        axes.set_xscale("log", base=2)
    return Figure(canvas, caption)


def plans(drawn: Mapping[str, object], caption: str = "") -> Figure:
    """`planner.Prediction`s as stacked bars: memory by kind, the device's limit dashed, and the step's time by kind.

    drawn    title to prediction
    caption  by default, each one's memory and time in words
    """
    canvas = Canvas(figsize=(8.4, 0.75 * len(drawn) + 2.2), layout="constrained")
    sides = canvas.subplots(2, 1)
    memories = {title: {kind: size / 2**30 for kind, size in p.memory.kinds.items()} for title, p in drawn.items()}
    _stacked(sides[0], memories, "memory of a device, GiB")
    for row, prediction in enumerate(drawn.values()):
        limit = prediction.cluster.chip.memory_bytes / 2**30
        sides[0].vlines(limit, row - 0.4, row + 0.4, color="black", linestyle="--")
    _stacked(sides[1], {title: p.step.kinds for title, p in drawn.items()}, "a step, seconds")
    if not caption:
        sizes = [f"{p.memory.total / 2**30:,.3g} GiB, {p.step.total:,.3g} s, {p.verdict}" for p in drawn.values()]
        words = "; ".join(f"{title}: {size}" for title, size in zip(drawn, sizes))
        caption = f"{words}. Dashed: the device's memory."
    return Figure(canvas, caption)


def stack(parts: Mapping[str, float], unit: str, limit: float, caption: str) -> Figure:
    """One bar of named parts, each with its own colour and hatch, against a limit.

    parts  name to width, in `unit`; parts of 0 are left out
    limit  in `unit`: a dashed line, with its value
    """
    canvas = Canvas(figsize=(7.2, 1.7), layout="constrained")
    axes = canvas.subplots()
    _stacked(axes, {"": parts}, unit)
    axes.axvline(limit, color="black", linestyle="--", linewidth=2)
    axes.text(limit, -0.34, f" limit {limit:,.4g}", va="bottom", fontsize=9)
    axes.set(xlim=(0, 1.15 * max(limit, sum(parts.values()))), ylim=(0.4, -0.65), yticks=[])
    return Figure(canvas, caption)


def _stacked(axes, bars: Mapping[str, Mapping[str, float]], xlabel: str) -> None:
    """Horizontal bars of named parts, one bar per title; a part that is 0 in all bars is left out."""
    kinds = [kind for kind in next(iter(bars.values())) if any(parts[kind] for parts in bars.values())]
    left = [0.0] * len(bars)
    for kind, colour, hatch in zip(kinds, COLOURS, HATCHES):
        widths = [parts[kind] for parts in bars.values()]
        style = {"color": colour, "hatch": hatch, "edgecolor": "white", "height": 0.6}
        axes.barh(range(len(bars)), widths, left=left, label=kind, **style)
        left = [start + width for start, width in zip(left, widths)]
    axes.set_yticks(range(len(bars)), bars)
    axes.invert_yaxis()
    axes.set_xlabel(xlabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=len(kinds), loc="lower left", bbox_to_anchor=(0, 1), fontsize=8)


def panels(canvas: Canvas, count: int, sharey: bool = False):
    """That many pairs of axes, side by side."""
    return canvas.subplots(1, count, sharey=sharey, squeeze=False)[0]


def _axes(height: float):
    canvas = Canvas(figsize=(7.2, height), layout="constrained")
    axes = canvas.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return canvas, axes
