"""Schematics of systems: who holds what, and who sends what to whom. Needs matplotlib; used by most lessons."""

from collections.abc import Mapping, Sequence

from course_lib.show.board import WIDTH, Board
from course_lib.show.figure import COLOURS, Figure, styled

JOBS = {"chief": COLOURS[3], "worker": COLOURS[0], "ps": COLOURS[2]}  # one colour for a kind of task


def places(count: int, width: float, left: float = 0.5, right: float = WIDTH - 0.5) -> list[float]:
    """Where `count` boxes of that width begin, spread from left to right."""
    room = (right - left - count * width) / max(1, count - 1)
    return [left + number * (width + room) for number in range(count)]


@styled
def logical_devices(physical: str, held: Mapping[str, str], caption: str) -> Figure:
    """A physical device, the logical ones that it was split into, and what each holds.

    held  name of a logical device to what it holds, in words
    """
    board = Board(13)
    board.box(0.5, 0.5, WIDTH - 1, 12)
    board.text(WIDTH / 2, 2, physical)
    width = (WIDTH - 4) / len(held) - 1
    for left, (number, (name, what)) in zip(places(len(held), width, 2, WIDTH - 2), enumerate(held.items())):
        board.box(left, 3.5, width, 8, colour=COLOURS[number % len(COLOURS)], fill=0.18)
        board.text(left + width / 2, 4.7, name, weight="bold")
        board.text(left + width / 2, 8.0, what)
    return board.figure(caption)


@styled
def replica_step(rows: Mapping[str, int], reduced: Mapping[str, int], caption: str) -> Figure:
    """A step of data parallelism: each replica's rows, model and gradients, and the all-reduce between them.

    rows     device to the examples of its shard
    reduced  device to how many numbers it gives to the all-reduce, and gets back summed
    """
    board = Board(25)
    width = (WIDTH - 1) / len(rows) - 1
    total, middle = sum(rows.values()), WIDTH / 2
    board.box(0.5, 0.4, WIDTH - 1, 2.6, f"global batch: {total} examples")
    board.box(0.5, 14.7, WIDTH - 1, 3.2, colour=COLOURS[3], fill=0.18)
    numbers = ", ".join(sorted({f"{size:,}" for size in reduced.values()}))
    board.text(middle, 16.3, f"all-reduce: {numbers} numbers from each, their sum to each")
    for left, (number, (device, count)) in zip(places(len(rows), width), enumerate(rows.items())):
        colour, centre = COLOURS[number % len(COLOURS)], left + width / 2
        board.arrow((centre, 3), (centre, 5))
        board.text(centre + 0.5, 4, f"{count}", ha="left")
        board.box(left, 5, width, 7.2, f"{device}\nall weights\nforward,\nbackward", colour, fill=0.18)
        board.arrow((centre, 12.2), (centre, 14.7), colour=colour)
        board.arrow((centre, 17.9), (centre, 20.2), colour=COLOURS[3])
        board.box(left, 20.2, width, 4.2, "the same\nupdate", colour, fill=0.18)
    return board.figure(caption)


@styled
def tasks(cluster: Mapping[str, Sequence[str]], links: Sequence[tuple[str, str, str]], caption: str) -> Figure:
    """The tasks of a cluster, a row for each kind, and who sends what to whom.

    cluster  kind to the second line of each of its tasks: an address, or what it does
    links    (task, task, what): from the first, such as "worker 0", to the second
    """
    gap, high = 11.5, 5
    board = Board(gap * len(cluster) - gap + high + 1)
    where = {}
    for row, (kind, words) in enumerate(cluster.items()):
        width = min(16.0, (WIDTH - 1) / len(words) - 3)
        left = 0.5 if len(words) > 1 else (WIDTH - width) / 2
        for index, x in enumerate(places(len(words), width, left, WIDTH - left)):
            where[f"{kind} {index}"] = x, row * gap + 0.5, width
            text = f"{kind} {index}\n{words[index]}"
            board.box(x, row * gap + 0.5, width, high, text, JOBS.get(kind, COLOURS[5]), fill=0.18)
    sent = {(source, target): what for source, target, what in links}
    for (source, target), what in sent.items():
        (x, y, width), (other_x, other_y, other_width) = where[source], where[target]
        back = sent.get((target, source), "")
        if y == other_y:  # side by side, an arrow each way
            forth = other_x > x
            start, end = (x + width, other_x) if forth else (x, other_x + other_width)
            height = y + (1.6 if forth else 3.6)
            board.arrow((start, height), (end, height), colour=COLOURS[3])
            board.text((start + end) / 2, height + (-0.9 if forth else 1), what)
        elif y < other_y or not back:  # one above the other, one arrow with both words
            down = other_y > y
            start, end = x + width / 2, other_x + other_width / 2
            board.arrow((start, y + high * down), (end, other_y + high * (not down)), COLOURS[3], both=bool(back))
            upper, lower = (start, end) if down else (end, start)
            far = max(start, end, key=lambda place: abs(place - WIDTH / 2))
            side = -1 if far < WIDTH / 2 else 1  # words stand outside of the fan that the arrows make
            where_to = {"ha": "right" if side < 0 else "left", "va": "bottom" if far == lower else "top"}
            if upper == lower:
                where_to = {"ha": "left", "va": "center"}
            words = f"{what} ↓\n{back} ↑" if back else what
            board.text((start + end) / 2 + side, (y + other_y + high) / 2, words, **where_to)
    return board.figure(caption)


@styled
def stages(parts: Mapping[str, Sequence[str]], crossing: Sequence[tuple[int, int, str]], caption: str) -> Figure:
    """A model cut into stages, one on each device, and the tensors that cross between two of them.

    parts     device to the lines that stand in its box
    crossing  (stage, stage, what): from the first to the second
    """
    deepest = max(len(lines) for lines in parts.values())
    board, width = Board(1.35 * deepest + 4), (WIDTH - 1 - 13 * (len(parts) - 1)) / len(parts)
    lefts = places(len(parts), width)
    for left, (number, (device, lines)) in zip(lefts, enumerate(parts.items())):
        board.box(left, 0.5, width, 1.35 * deepest + 3, colour=COLOURS[number], fill=0.18)
        board.text(left + width / 2, 1.7, device, weight="bold")
        board.text(left + width / 2, 2.8, "\n".join(lines), va="top")
    for source, target, what in crossing:
        forth = target > source
        start = lefts[source] + (width if forth else 0)
        end = lefts[target] + (0 if forth else width)
        height = (0.35 if forth else 0.75) * (1.35 * deepest + 4)
        board.arrow((start, height), (end, height), colour=COLOURS[4] if forth else COLOURS[1])
        board.text((start + end) / 2, height - 0.3, what, va="bottom")
    return board.figure(caption)


@styled
def flow(parts: Sequence[tuple[str, str]], caption: str, columns: int = 3) -> Figure:
    """The parts of a project in the order in which they work, row by row.

    parts  (name, what it is set to)
    """
    rows = -(-len(parts) // columns)
    width, height = (WIDTH - 1) / columns - 2, 6.0
    board = Board(rows * (height + 2) - 1)
    for number, (name, what) in enumerate(parts):
        row, column = divmod(number, columns)
        left, top = 0.5 + column * (width + 2.9), 0.5 + row * (height + 2)
        board.box(left, top, width, height, colour=COLOURS[row % len(COLOURS)], fill=0.18)
        board.text(left + width / 2, top + 1.5, name, weight="bold")
        board.text(left + width / 2, top + 3.8, what)
        if column < columns - 1 and number < len(parts) - 1:
            board.arrow((left + width, top + height / 2), (left + width + 2.9, top + height / 2))
    return board.figure(caption)
