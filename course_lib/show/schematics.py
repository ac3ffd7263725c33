"""Schematics: who holds what, who sends what to whom, what happens when. Needs matplotlib; notebooks/02, 06 and 07."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from course_lib.show.charts import COLOURS, Figure, panels


def messages(networks: Mapping[str, object], caption: str, rounds: int | None = None) -> Figure:
    """Ledgers of `collectives.Network`s side by side: bytes run down, workers across, one arrow per message.

    networks  name to ledger; a round is as high as its largest message, so a
              picture's height is the network's critical_bytes. Colours name the senders.
    rounds    draw that many rounds, and the later ones in pale dashes; write under each worker
              what it has sent and received by then. None draws them all
    """
    deepest = max(network.critical_bytes for network in networks.values())
    width = 3.0 if rounds is None else max(3.0, 0.8 * max(network.workers for network in networks.values()) + 0.9)
    canvas = Canvas(figsize=(width * len(networks), 4.2), layout="constrained")
    for axes, (name, network) in zip(panels(canvas, len(networks), sharey=True), networks.items()):
        starts, workers = network.round_starts_bytes, range(network.workers)
        for message in network.messages:
            top = starts[message.round]
            style = {"color": COLOURS[message.source % len(COLOURS)], "linewidth": 1.8}
            if rounds is not None and message.round >= rounds:
                style = {"color": "0.8", "linestyle": "--", "linewidth": 1}
            arrow = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, **style}
            end = message.target, top + message.size_bytes
            axes.annotate("", end, (message.source, top), arrowprops=arrow).set_in_layout(False)
        axes.set(title=name, xlabel="worker", xlim=(-0.4, network.workers - 0.6), ylim=(1.02 * deepest, 0))
        axes.set_xticks(workers)
        if rounds is not None:
            done = network.until(rounds)
            under = [f"{w}\nsent {done.sent_bytes(w):,}\ngot {done.received_bytes(w):,}" for w in workers]
            axes.set_xticks(workers, under, fontsize=8)
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
    for axes, (title, array) in zip(panels(canvas, len(arrays)), arrays.items()):
        holders: dict[tuple, list[int]] = {}
        for shard in array.addressable_shards:
            rows, columns = (part.indices(length)[:2] for part, length in zip(shard.index, array.shape))
            holders.setdefault((*rows, *columns), []).append(shard.device.id)
        for (top, bottom, left, right), devices in holders.items():
            style = {"color": COLOURS[devices[0] % len(COLOURS)], "alpha": 0.45, "edgecolor": "white", "linewidth": 2}
            axes.bar(left, bottom - top, right - left, top, align="edge", **style)
            named = ("\n" if right - left < bottom - top else ", ").join(map(str, devices))
            axes.text((left + right) / 2, (top + bottom) / 2, named, ha="center", va="center")
        axes.set(title=title, xlim=(0, array.shape[1]), ylim=(array.shape[0], 0), xticks=[], yticks=[])
        axes.set(xlabel=f"{array.shape[1]} columns", ylabel=f"{array.shape[0]} rows")
        axes.spines[:].set_visible(False)
    return Figure(canvas, caption)


def timelines(drawn: Mapping[str, object], caption: str, unit: str = "time, in forwards of one stage") -> Figure:
    """`pipeline.Timeline`s below each other on one axis: a row per stage, a numbered bar per micro-batch.

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
            _draw_slot(axes, slot, slot.start - timeline.start, longest / 90)
        for stage, most in enumerate(timeline.peak_in_flight):
            axes.text(1.01 * longest, stage, f"holds {most}", va="center", fontsize=8)
        axes.set_title(f"{title}: {timeline.bubble:.0%} idle", loc="left", fontsize=9)
        axes.set_yticks(range(timeline.stages), [f"stage {stage}" for stage in range(timeline.stages)])
        axes.set(xlim=(0, longest), ylim=(timeline.stages - 0.5, -0.5))
        axes.spines[["top", "right"]].set_visible(False)
    rows[-1].set_xlabel(unit)
    return Figure(canvas, caption)


def path(steps: Sequence[tuple[str, str]], ends: Sequence[str], caption: str) -> Figure:
    """Questions from top to bottom, each with the answer taken, and on the right the boxes that they lead to.

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


def _draw_slot(axes, slot, start: float, narrowest: float) -> None:
    """A piece of work as a bar from `start`, with its micro-batch's number where that fits: above `narrowest`."""
    is_forward, length = slot.work.kind == "forward", slot.end - slot.start
    colour, hatch = (COLOURS[4], "") if is_forward else (COLOURS[1], "////")
    style = {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.8}
    alpha = 0.45 if slot.work.chunk else 1.0
    axes.add_artist(Rectangle((start, slot.stage - 0.45), length, 0.9, alpha=alpha, **style))
    if length > narrowest:
        style = {"ha": "center", "va": "center", "fontsize": 7}
        number = axes.text(start + length / 2, slot.stage, slot.work.micro_batch, **style)
        number.set_in_layout(False)  # inside its bar: measuring hundreds of them takes longer than drawing
