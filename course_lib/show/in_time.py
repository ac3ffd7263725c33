"""Schematics of what happens when: time runs to the right, or down. Needs matplotlib; used in most lessons."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from course_lib.show.board import WIDTH, Board
from course_lib.show.figure import COLOURS, FAINT, ON_COLOUR, PAPER, WIDTH_INCHES, Figure, panels, styled

FORWARD, BACKWARD, UPDATE = COLOURS[4], COLOURS[1], COLOURS[2]


@styled
def messages(networks: Mapping[str, object], caption: str, rounds: int | None = None) -> Figure:
    """Ledgers of `collectives.Network`s side by side: bytes run down, workers across, one arrow per message.

    networks  name to ledger; a round is as high as its largest message, so a
              picture's height is the network's critical_bytes. Colours name the senders.
    rounds    draw that many rounds, and the later ones in pale dashes; write under each worker
              what it has sent and received by then. None draws them all
    """
    deepest = max(network.critical_bytes for network in networks.values())
    canvas, sides = panels(len(networks), 3.4, columns=3, sharey=True)
    for axes, (name, network) in zip(sides, networks.items()):
        starts, workers = network.round_starts_bytes, range(network.workers)
        for message in network.messages:
            top = starts[message.round]
            style = {"color": COLOURS[message.source % len(COLOURS)], "linewidth": 1.8}
            if rounds is not None and message.round >= rounds:
                style = {"color": FAINT, "linestyle": "--", "linewidth": 1}
            arrow = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, **style}
            end = message.target, top + message.size_bytes
            axes.annotate("", end, (message.source, top), arrowprops=arrow).set_in_layout(False)
        axes.set(title=name, xlabel="worker", xlim=(-0.4, network.workers - 0.6), ylim=(1.02 * deepest, 0))
        axes.set_xticks(workers)
        if rounds is not None:
            done = network.until(rounds)
            under = [f"{w}\nsent {done.sent_bytes(w):,}\ngot {done.received_bytes(w):,}" for w in workers]
            axes.set_xticks(workers, under, fontsize=8 if network.workers < 7 else 7)
        axes.grid(axis="x")
    sides[0].set_ylabel("bytes sent one after another")
    sides[0].yaxis.set_major_formatter("{x:,.0f}")
    return Figure(canvas, caption)


@styled
def timelines(drawn: Mapping[str, object], caption: str, unit: str = "time, in forwards of one stage") -> Figure:
    """`pipeline.Timeline`s below each other on one axis: a row per stage, a numbered bar per micro-batch.

    drawn  title to timeline, planned or measured; each starts at 0. Forwards are light
           blue, backwards orange, paler in a stage's further chunks; to the right, the
           most micro-batches that a stage holds at once
    """
    heights = [timeline.stages for timeline in drawn.values()]
    canvas = Canvas(figsize=(WIDTH_INCHES, 0.32 * sum(heights) + 0.5 * len(drawn) + 0.4), layout="constrained")
    longest = max(timeline.total for timeline in drawn.values())
    rows = canvas.subplots(len(drawn), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, timeline) in zip(rows, drawn.items()):
        for slot in timeline.slots:
            _draw_slot(axes, slot, slot.start - timeline.start, longest / 90)
        for stage, most in enumerate(timeline.peak_in_flight):
            axes.text(1.01 * longest, stage, f"holds {most}", va="center", fontsize=8)
        axes.set_title(f"{title}: {timeline.bubble:.0%} idle", loc="left")
        axes.set_yticks(range(timeline.stages), [f"stage {stage}" for stage in range(timeline.stages)])
        axes.set(xlim=(0, longest), ylim=(timeline.stages - 0.5, -0.5))
    rows[-1].set_xlabel(unit)
    return Figure(canvas, caption)


@styled
def marks(profiles: Mapping[str, Sequence[object]], names: Sequence[str], caption: str) -> Figure:
    """Marks of profiles, a row for each profile, all on one scale of time.

    profiles  title to `profiler.Event`s, of which those with these names are drawn
    names     a colour each
    """
    board, left = Board(2.9 * len(profiles) + 3.2), 10.5
    drawn = {title: [event for event in events if event.name in names] for title, events in profiles.items()}
    longest = max(
        max(e.end_seconds for e in events) - min(e.start_seconds for e in events) for events in drawn.values()
    )
    colours = dict(zip(names, (COLOURS[6], FORWARD, *COLOURS)))
    for place, name in enumerate(names):
        board.cell(left + 10 * place, 0.5, 1.2, 1.2, colours[name])
        board.text(left + 1.7 + 10 * place, 1.1, name, ha="left")
    for row, (title, events) in enumerate(drawn.items()):
        begin, top = min(event.start_seconds for event in events), 2.7 + 2.9 * row
        board.text(left - 0.7, top + 1.1, title, ha="right")
        board.line([(left, top + 1.1), (WIDTH - 0.5, top + 1.1)], colour=FAINT)
        for event in events:
            start, end = (
                (t - begin) / longest * (WIDTH - 0.5 - left) for t in (event.start_seconds, event.end_seconds)
            )
            board.cell(left + start, top, end - start, 2.2, colours[event.name])
    board.arrow((left, 2.9 * len(profiles) + 2.5), (WIDTH - 0.5, 2.9 * len(profiles) + 2.5), width=0.8)
    board.text(left - 0.7, 2.9 * len(profiles) + 2.5, "time", ha="right")
    return board.figure(caption)


@styled
def restarts(
    reports: Mapping[str, Sequence[tuple[int, int]]], saved: Sequence[int], caption: str, room: int = 0
) -> Figure:
    """The steps that tasks reported, in the order in which they did: what was done twice, where a save was.

    reports  task to its (attempt, step) pairs
    saved    steps after which the state was saved
    room     for so many steps of a task, where more are to come
    """
    most = max(room, *(len(pairs) for pairs in reports.values()))
    board, left = Board(4.2 * len(reports) + 5), 9.5
    step_width = (WIDTH - 0.5 - left) / (most + 2)
    for place, (colour, hatch, name) in enumerate(
        ((FORWARD, "", "a step"), (BACKWARD, "////", "done again"), (UPDATE, "", "then saved"))
    ):
        board.cell(left + 12 * place, 0.5, 1.2, 1.2, colour, hatch=hatch)
        board.text(left + 1.7 + 12 * place, 1.1, name, ha="left")
    for row, (task, pairs) in enumerate(reports.items()):
        top, x, seen = 3.6 + 4.2 * row, left, set()
        board.text(left - 0.7, top + 1.2, task, ha="right")
        for place, (attempt, step) in enumerate(pairs):
            if place and attempt > pairs[place - 1][0]:
                board.line([(x + step_width, top - 0.6), (x + step_width, top + 3)], colour=COLOURS[3], width=2)
                x += 2 * step_width
            colour, hatch = (BACKWARD, "////") if step in seen else (FORWARD, "")
            board.cell(x, top, step_width, 2.4, UPDATE if step in saved else colour, hatch=hatch)
            if step in saved or step == 1:
                board.text(x + step_width / 2, top + 3.2, f"{step}", size=7.5)
            seen.add(step)
            x += step_width
    board.text(left - 0.7, 4.2 * len(reports) + 3.4, "after step", ha="right", size=7.5)
    return board.figure(caption)


@styled
def stale_updates(updates: Sequence[tuple[int, float, int]], caption: str) -> Figure:
    """Workers above a server's line: each step reads the newest version, and its update makes the next one at its end.

    updates  (worker, end, staleness), in the order in which the server applies them; a worker
             begins its next step when its last one ends
    """
    workers, longest = 1 + max(worker for worker, _, _ in updates), max(end for _, end, _ in updates)
    pitch, left = 5.0, 9.5
    server = pitch * workers + 3.0
    board, unit = Board(server + 5.5), (WIDTH - 4.5 - left) / longest
    board.line([(left, server), (WIDTH - 0.5, server)], width=2)
    for y, name in ((server, "server"), (server + 1.5, "version"), (server + 3.5, "staleness")):
        board.text(left - 1.2, y, name, ha="right")
    board.text(left, server + 1.5, "0")
    for worker in range(workers):
        board.text(left - 1.2, 1.6 + pitch * worker, f"worker {worker}", ha="right")
    begins, drawn = dict.fromkeys(range(workers), 0.0), -1.0
    for place, (worker, end, staleness) in enumerate(updates):
        colour, top = COLOURS[worker % len(COLOURS)], 0.5 + pitch * worker
        board.cell(left + begins[worker] * unit, top, (end - begins[worker]) * unit, 2.2, colour, fill=0.9)
        x = left + end * unit
        drawn = max(x, drawn + 2.2)  # of two that end at once, the later beside the earlier
        board.arrow((x, top + 2.2), (drawn, server), colour=colour)
        board.text(drawn, server + 1.5, f"{place + 1}")
        board.text(drawn, server + 3.5, f"{staleness}", weight="bold" if staleness else "normal")
        begins[worker] = end
    return board.figure(caption)


@styled
def accumulation(passes: Mapping[str, Sequence[int]], caption: str) -> Figure:
    """An update made by passes of so many rows: forwards, backwards and update in time, and above them the rows held.

    passes  title to the rows of each pass; a row's forward takes a unit of time, its backward two
    """
    left, longest = 3.5, 3.2 * max(sum(rows) for rows in passes.values())
    most = max(max(rows) for rows in passes.values())
    board, unit, high = Board(15.5 * len(passes) + 2), (WIDTH - 0.5 - left) / longest, 8 / most
    for place, (colour, name) in enumerate(((FORWARD, "forward"), (BACKWARD, "backward"), (UPDATE, "update"))):
        board.cell(left + 12 * place, 0.4, 1.2, 1.2, colour)
        board.text(left + 1.7 + 12 * place, 1, name, ha="left")
    for number, (title, rows) in enumerate(passes.items()):
        floor, x = 15.5 * number + 13, left
        board.text(left, floor - 9.8, title, ha="left", weight="bold")
        for size in rows:
            peak = x + size * unit
            end = peak + 2 * size * unit
            held = [(x, floor), (peak, floor - size * high), (end, floor), (x, floor)]
            board.line(held, colour=COLOURS[5], width=1.5)
            board.text(peak + 0.5, floor - size * high, f"{size} rows", ha="left", size=8)
            board.cell(x, floor + 0.4, peak - x, 2, FORWARD)
            board.cell(peak, floor + 0.4, end - peak, 2, BACKWARD)
            x = end
        board.cell(x, floor + 0.4, 0.2 / 3.2 * longest * unit, 2, UPDATE)
    return board.figure(caption)


@styled
def paired_calls(calls: Mapping[str, Mapping[int, str]], caption: str) -> Figure:
    """Collectives of tasks, in each task's own order: those of one number meet, and are joined by a line if alike.

    calls  task to the number of each call and what it is, in a few characters
    """
    numbers, left = sorted(set().union(*calls.values())), 8.5
    board, pitch = Board(5.5 * len(calls) + 1.5), (WIDTH - 0.5 - left) / len(numbers)
    for column, number in enumerate(numbers):
        met, x = [made[number] for made in calls.values() if number in made], left + column * pitch
        alike = len(met) == len(calls) and len(set(met)) == 1
        board.text(x + pitch / 2, 0.9, f"call {number}")
        for row, made in enumerate(calls.values()):
            colour, top = COLOURS[2] if alike else COLOURS[3], 2.2 + 5.5 * row
            if number in made:
                board.box(x + 0.4, top, pitch - 0.8, 3, made[number], colour, fill=0.18)
            if row and alike:
                board.line([(x + pitch / 2, top - 2.5), (x + pitch / 2, top)], colour, width=2)
            elif row:
                board.text(x + pitch / 2, top - 1.3, "\u2260", size=12, colour=colour, weight="bold")
    for row, task in enumerate(calls):
        board.text(left - 0.7, 3.7 + 5.5 * row, task, ha="right")
    return board.figure(caption)


def _draw_slot(axes, slot, start: float, narrowest: float) -> None:
    """A piece of work as a bar from `start`, with its micro-batch's number where that fits: above `narrowest`."""
    is_forward, length = slot.work.kind == "forward", slot.end - slot.start
    colour, hatch = (FORWARD, "") if is_forward else (BACKWARD, "////")
    if slot.work.chunk:
        colour = 0.5 + 0.5 * np.array(to_rgb(colour))  # half white, whatever is behind it
    style = {"facecolor": colour, "hatch": hatch, "edgecolor": PAPER, "linewidth": 0.8}
    axes.add_artist(Rectangle((start, slot.stage - 0.45), length, 0.9, **style))
    if length > narrowest:
        style = {"ha": "center", "va": "center", "fontsize": 7, "color": ON_COLOUR}
        number = axes.text(start + length / 2, slot.stage, slot.work.micro_batch, **style)
        number.set_in_layout(False)  # inside its bar: measuring hundreds of them takes longer than drawing
