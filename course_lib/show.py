"""Figures with a text twin; the only module that imports matplotlib.

Every figure's caption states its finding in words, so that a reader who does
not see the picture loses nothing. Used by all lessons.
"""

import ast
import inspect
import io
import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from course_lib.table import Table

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

    def picture(self, dpi: int = 110) -> bytes:
        """The drawing alone as a PNG file's bytes, for where the caption stands beside it as text."""
        picture, before = io.BytesIO(), self.canvas.dpi
        self.canvas.set_dpi(dpi)
        try:
            FigureCanvasAgg(self.canvas).print_png(picture)  # savefig would draw twice, for the layout and for the file
        finally:
            self.canvas.set_dpi(before)
        return picture.getvalue()

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
    for axes, picture, title in zip(canvas.subplots(1, len(titles), squeeze=False)[0], pictures, titles):
        axes.imshow(picture.squeeze(), cmap="gray_r", vmin=0, vmax=1)
        axes.set_title(title, fontsize=9)
        axes.axis("off")
    return Figure(canvas, caption)


def messages(networks: Mapping[str, object], caption: str, rounds: int | None = None) -> Figure:
    """Ledgers of `collectives.Network`s side by side: bytes run down, workers across, one arrow per message.

    networks  name to ledger; a round is as high as its largest message, so a
              picture's height is the network's critical_bytes. Colours tell the senders.
    rounds    draw those so far, the ones to come in pale dashes, and write under each worker
              what it sent and received by then; all of them, without, by default
    """
    deepest = max(network.critical_bytes for network in networks.values())
    width = 3.0 if rounds is None else max(3.0, 0.8 * max(network.workers for network in networks.values()) + 0.9)
    canvas = Canvas(figsize=(width * len(networks), 4.2), layout="constrained")
    for axes, (name, network) in zip(
        canvas.subplots(1, len(networks), sharey=True, squeeze=False)[0], networks.items()
    ):
        starts = network.round_starts_bytes
        for message in network.messages:
            start, end = (
                (message.source, starts[message.round]),
                (message.target, starts[message.round] + message.size_bytes),
            )
            style = {
                "arrowstyle": "-|>",
                "color": COLOURS[message.source % len(COLOURS)],
                "shrinkA": 0,
                "shrinkB": 0,
                "linewidth": 1.8,
            }
            if rounds is not None and message.round >= rounds:
                style |= {"color": "0.8", "linestyle": "--", "linewidth": 1}
            axes.annotate("", end, start, arrowprops=style).set_in_layout(False)
        axes.set(title=name, xlabel="worker", xlim=(-0.4, network.workers - 0.6), ylim=(1.02 * deepest, 0))
        axes.set_xticks(range(network.workers))
        if rounds is not None:
            done = network.until(rounds)
            under = (
                f"{w}\nsent {done.sent_bytes(w):,}\ngot {done.received_bytes(w):,}" for w in range(network.workers)
            )
            axes.set_xticks(range(network.workers), under, fontsize=8)
        axes.grid(axis="x", color="0.85")
        axes.spines[["top", "right"]].set_visible(False)
    canvas.axes[0].set_ylabel("bytes sent one after another")
    canvas.axes[0].yaxis.set_major_formatter("{x:,.0f}")
    return Figure(canvas, caption)


def shards(arrays: Mapping[str, object], caption: str) -> Figure:
    """Which devices hold which block of each matrix, read from the matrix's own shards.

    arrays  title to a JAX array (rows, columns). A colour is the block's first device;
            a block that several devices hold names them all
    """
    canvas = Canvas(figsize=(2.7 * len(arrays), 2.6), layout="constrained")
    for axes, (title, array) in zip(canvas.subplots(1, len(arrays), squeeze=False)[0], arrays.items()):
        holders: dict[tuple, list[int]] = {}
        for shard in array.addressable_shards:
            (top, bottom, _), (left, right, _) = (
                part.indices(length) for part, length in zip(shard.index, array.shape)
            )
            holders.setdefault((top, bottom, left, right), []).append(shard.device.id)
        for (top, bottom, left, right), devices in holders.items():
            colour = COLOURS[devices[0] % len(COLOURS)]
            axes.bar(
                left,
                bottom - top,
                right - left,
                top,
                align="edge",
                color=colour,
                alpha=0.45,
                edgecolor="white",
                linewidth=2,
            )
            named = "\n".join(map(str, devices)) if right - left < bottom - top else ", ".join(map(str, devices))
            axes.text((left + right) / 2, (top + bottom) / 2, named, ha="center", va="center")
        axes.set(title=title, xlim=(0, array.shape[1]), ylim=(array.shape[0], 0), xticks=[], yticks=[])
        axes.set(xlabel=f"{array.shape[1]} columns", ylabel=f"{array.shape[0]} rows")
        axes.spines[:].set_visible(False)
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


def timelines(drawn: Mapping[str, object], caption: str, unit: str = "time, in forwards of one stage") -> Figure:
    """`pipeline.Timeline`s below each other on one axis: a row per stage, a numbered box per micro-batch, white where it idles.

    drawn  title to timeline, planned or measured; each starts at 0. Forwards are light
           blue, backwards orange, paler in a stage's further chunks; to the right, the
           most micro-batches that a stage holds at once
    """
    heights = [timeline.stages for timeline in drawn.values()]
    canvas = Canvas(figsize=(8.4, 0.36 * sum(heights) + 0.62 * len(drawn) + 0.5), layout="constrained")
    longest = max(timeline.total for timeline in drawn.values())
    rows = canvas.subplots(len(drawn), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, timeline) in zip(rows, drawn.items()):
        for slot in timeline.slots:
            colour, start = COLOURS[4 if slot.work.kind == "forward" else 1], slot.start - timeline.start
            style = {
                "facecolor": colour,
                "alpha": 0.45 if slot.work.chunk else 1.0,
                "edgecolor": "white",
                "linewidth": 0.8,
            }
            style["hatch"] = "" if slot.work.kind == "forward" else "////"
            axes.add_artist(Rectangle((start, slot.stage - 0.45), slot.end - slot.start, 0.9, **style))
            if slot.end - slot.start > longest / 90:  # or its number does not fit
                middle = start + (slot.end - slot.start) / 2
                number = axes.text(middle, slot.stage, slot.work.micro_batch, ha="center", va="center", fontsize=7)
                number.set_in_layout(
                    False
                )  # it lies inside its box: measuring hundreds of them takes longer than drawing
        for stage, most in enumerate(timeline.peak_in_flight):
            axes.text(1.01 * longest, stage, f"holds {most}", va="center", fontsize=8)
        axes.set_title(f"{title}: {timeline.bubble:.0%} idle", loc="left", fontsize=9)
        axes.set_yticks(range(timeline.stages), [f"stage {stage}" for stage in range(timeline.stages)])
        axes.set(xlim=(0, longest), ylim=(timeline.stages - 0.5, -0.5))
        axes.spines[["top", "right"]].set_visible(False)
    rows[-1].set_xlabel(unit)
    return Figure(canvas, caption)


def plans(drawn: Mapping[str, object], caption: str = "") -> Figure:
    """`plan.Prediction`s as stacked bars: memory by kind with the device's limit dashed, and the step's time by kind.

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
    words = [
        f"{title}: {p.memory.total / 2**30:,.3g} GiB, {p.step.total:,.3g} s, {p.verdict}" for title, p in drawn.items()
    ]
    return Figure(canvas, caption or "; ".join(words) + ". Dashed: the device's memory.")


def stack(parts: Mapping[str, float], unit: str, limit: float, caption: str) -> Figure:
    """One bar of named parts, each with its own colour and hatch, against a limit.

    parts  name to width, in `unit`; those of nothing are left out
    limit  in `unit`: a dashed line, with its value
    """
    canvas = Canvas(figsize=(7.2, 1.7), layout="constrained")
    axes = canvas.subplots()
    _stacked(axes, {"": parts}, unit)
    axes.axvline(limit, color="black", linestyle="--", linewidth=2)
    axes.text(limit, -0.34, f" limit {limit:,.4g}", va="bottom", fontsize=9)
    axes.set(xlim=(0, 1.15 * max(limit, sum(parts.values()))), ylim=(0.4, -0.65), yticks=[])
    return Figure(canvas, caption)


def path(steps: Sequence[tuple[str, str]], ends: Sequence[str], caption: str) -> Figure:
    """Questions from top to bottom, each with the answer that was taken, and boxes that they lead to on the right.

    steps  (question, answer)
    ends   what to do, in order
    """
    rows = max(len(steps), len(ends))
    canvas = Canvas(figsize=(8.6, 0.4 * rows + 0.2))
    axes = canvas.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10), ylim=(rows, 0))
    axes.axis("off")
    for row, (question, answer) in enumerate(steps):
        axes.text(0.1, row + 0.5, question, va="center", fontsize=9)
        axes.text(4.5, row + 0.5, answer, va="center", ha="right", fontsize=9, weight="bold")
        axes.plot((0.1, 4.5), (row + 1, row + 1), color="0.85", linewidth=0.8)
    heights = [(row + 0.5) * rows / len(ends) for row in range(len(ends))]
    arrow = {"arrowstyle": "-|>", "color": COLOURS[0], "linewidth": 1.8}
    axes.annotate("", (5.0, heights[0]), (4.55, heights[0]), arrowprops=arrow)
    for row, (height, end) in enumerate(zip(heights, ends)):
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": COLOURS[0], "linewidth": 1.5}
        axes.text(5.1, height, f"{row + 1}  {end}", va="center", fontsize=8.5, bbox=box)
        if row:
            axes.annotate("", (5.3, height - 0.3), (5.3, heights[row - 1] + 0.3), arrowprops=arrow)
    return Figure(canvas, caption)


def save(figure: Figure, path) -> None:
    """Write a figure with its caption as a PNG file."""
    pictures, _ = figure._repr_mimebundle_()
    path.write_bytes(pictures["image/png"])


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in plain text: the first column to the left, the others to the right."""
    return repr(Table(headers, rows))


def source(function) -> str:
    """A function's source without its docstring, so that a lesson shows the code that it runs."""
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    first = ast.parse("\n".join(lines)).body[0].body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        del lines[first.lineno - 1 : first.end_lineno]
    return "\n".join(line for number, line in enumerate(lines) if line or number != first.lineno - 1)


def _stacked(axes, bars: Mapping[str, Mapping[str, float]], xlabel: str) -> None:
    """Horizontal bars of named parts, one bar per title; a part that is nothing everywhere is left out."""
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


def _axes(height: float):
    canvas = Canvas(figsize=(7.2, height), layout="constrained")
    axes = canvas.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return canvas, axes
