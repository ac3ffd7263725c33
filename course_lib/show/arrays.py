"""Schematics of arrays: which part is where, and what a number is made of. Needs matplotlib; used in 02, 05, 07, 09."""

from collections.abc import Mapping, Sequence
from math import ceil, cos, pi, sin

from course_lib.show.board import WIDTH, Board
from course_lib.show.figure import COLOURS, FAINT, PAPER, Figure, panels, styled
from course_lib.show.systems import places

BITS = {"sign": COLOURS[3], "exponent": COLOURS[2], "mantissa": COLOURS[0]}


@styled
def ring(rounds: Mapping[str, Sequence[Sequence[set]]], caption: str) -> Figure:
    """Workers around a ring after each round: their chunks, striped in the colours of whose numbers are in them.

    rounds  title to what each worker holds then: for each of its chunks the set
            of the workers that are summed in it. A frame marks what is new
    """
    width, height = WIDTH / 2, 21.0
    board = Board(ceil(len(rounds) / 2) * height)
    before = None
    for number, (title, held) in enumerate(rounds.items()):
        left, top = number % 2 * width, number // 2 * height
        board.text(left + width / 2, top + 1, title, weight="bold")
        workers, centres = len(held), []
        for worker in range(workers):
            turn = 2 * pi * worker / workers
            centres.append((left + width / 2 + 7.2 * sin(turn), top + 12.2 - 6.6 * cos(turn)))
        for worker, (x, y) in enumerate(centres):
            board.text(x, y - 2.2, f"worker {worker}", size=7.5)
            for chunk, members in enumerate(held[worker]):
                corner = x + (chunk - len(held[worker]) / 2) * 2.1, y - 1.3
                for member in range(workers):
                    inside = member in members
                    colour = COLOURS[member % len(COLOURS)] if inside else FAINT
                    stripe = corner[0], corner[1] + member * 2.8 / workers, 1.9, 2.8 / workers
                    board.cell(*stripe, colour, fill=1.0 if inside else 0.4)
                if before and before[worker][chunk] != members:
                    board.line([corner, (corner[0] + 1.9, corner[1]), (corner[0] + 1.9, corner[1] + 2.8)], width=1.6)
                    board.line([corner, (corner[0], corner[1] + 2.8), (corner[0] + 1.9, corner[1] + 2.8)], width=1.6)
            if before:
                target = centres[(worker + 1) % workers]
                start, end = [(x + part * (target[0] - x), y + part * (target[1] - y)) for part in (0.36, 0.66)]
                board.arrow(start, end, colour=COLOURS[worker % len(COLOURS)])
        before = held
    return board.figure(caption)


@styled
def shards(arrays: Mapping[str, object], caption: str) -> Figure:
    """Which devices hold which block of each matrix, read from the matrix's own shards.

    arrays  title to a JAX array (rows, columns). A colour is the block's first device;
            a block that several devices hold names them all
    """
    canvas, sides = panels(len(arrays), 2.0)
    for axes, (title, array) in zip(sides, arrays.items()):
        holders: dict[tuple, list[int]] = {}
        for shard in array.addressable_shards:
            rows, columns = (part.indices(length)[:2] for part, length in zip(shard.index, array.shape))
            holders.setdefault((*rows, *columns), []).append(shard.device.id)
        for (top, bottom, left, right), devices in holders.items():
            style = {"color": COLOURS[devices[0] % len(COLOURS)], "alpha": 0.45, "edgecolor": PAPER, "linewidth": 2}
            axes.bar(left, bottom - top, right - left, top, align="edge", **style)
            named = ("\n" if right - left < bottom - top else ", ").join(map(str, devices))
            axes.text((left + right) / 2, (top + bottom) / 2, named, ha="center", va="center")
        axes.set(title=title, xlim=(0, array.shape[1]), ylim=(array.shape[0], 0), xticks=[], yticks=[])
        axes.set(xlabel=f"{array.shape[1]} columns", ylabel=f"{array.shape[0]} rows")
        axes.spines[:].set_visible(False)
    return Figure(canvas, caption)


@styled
def mesh(devices: Sequence[Sequence[str]], axes: Sequence[str], caption: str) -> Figure:
    """Devices as a table of two named axes: what each holds, and along which axis it exchanges what.

    devices  [row][column], the words in a device's box
    axes     what stands at the arrow down the rows, and at the one along the columns
    """
    rows, columns = len(devices), len(devices[0])
    board, pitch, top = Board(7.5 * len(devices) + 1.5), 7.5, 3.5
    width = (WIDTH - 12) / columns - 2
    lefts = places(columns, width, left=11)
    for row, words in enumerate(devices):
        y = top + pitch * row
        for column, (left, text) in enumerate(zip(lefts, words)):
            board.box(left, y, width, 5, text, COLOURS[row % len(COLOURS)], fill=0.18)
            if column + 1 < columns:
                board.arrow((left + width, y + 2.5), (lefts[column + 1], y + 2.5), both=True, width=1)
            if row + 1 < rows:
                board.arrow((left + width / 2, y + 5), (left + width / 2, y + pitch), both=True, width=1)
    bottom = top + pitch * rows - 2.5
    board.arrow((9.6, top), (9.6, bottom), colour=COLOURS[3])
    board.text(9, (top + bottom) / 2, axes[0], ha="right")
    board.arrow((11, 2.4), (WIDTH - 0.5, 2.4), colour=COLOURS[3])
    board.text((WIDTH + 10) / 2, 1.1, axes[1])
    return board.figure(caption)


@styled
def tiles(matrices: Mapping[str, tuple[int, int]], tile: tuple[int, int], caption: str) -> Figure:
    """Matrices in a memory that moves whole tiles: what holds numbers in colour, the padding hatched.

    matrices  title to (rows, columns)
    tile      (rows, columns)
    """
    padded = {name: [ceil(n / side) * side for n, side in zip(shape, tile)] for name, shape in matrices.items()}
    unit = (WIDTH - 1 - 2 * (len(matrices) - 1)) / sum(columns for _, columns in padded.values())
    tall = 0.16  # of a row, so that tiles of 8 rows can be seen
    board = Board(max(rows for rows, _ in padded.values()) * tall + 5)
    left = 0.5
    for name, (rows, columns) in matrices.items():
        high, wide = padded[name]
        board.cell(left, 4.2, wide * unit, high * tall, COLOURS[6], fill=0.5, hatch="///")
        board.cell(left, 4.2, columns * unit, rows * tall, COLOURS[0], fill=0.9)
        for x in range(0, wide + 1, tile[1]):
            board.line([(left + x * unit, 4.2), (left + x * unit, 4.2 + high * tall)])
        for y in range(0, high + 1, tile[0]):
            board.line([(left, 4.2 + y * tall), (left + wide * unit, 4.2 + y * tall)], width=0.6)
        share = rows * columns / (high * wide)
        board.text(left + wide * unit / 2, 2, f"{name}\n{share:.0%} full")
        left += wide * unit + 2
    return board.figure(caption)


@styled
def column_row_pair(steps: Sequence[Sequence[str]], sums: Mapping[str, str], caption: str) -> Figure:
    """A column layer and a row layer on several devices, from the input that all have to the sum of their outputs.

    steps  for each device the words of its boxes, from left to right
    sums   "f" and "g" to what they do, forward and backward
    """
    pitch = 5.4
    board = Board(pitch * len(steps) + 4.6)
    bottom = 4.2 + pitch * len(steps) - 1.6
    for x, name in ((2.6, "f"), (WIDTH - 2.6, "g")):
        board.box(x - 2, 4.2, 4, bottom - 4.2, name, COLOURS[3], fill=0.18, weight="bold")
        board.text(0.6 if name == "f" else WIDTH - 0.6, 2, sums[name], ha="left" if name == "f" else "right")
    for row, words in enumerate(steps):
        width, colour = 10.2, COLOURS[row % len(COLOURS)]
        lefts, top = places(len(words), width, 6.6, WIDTH - 6.6), 4.2 + pitch * row
        board.arrow((4.6, top + 1.9), (lefts[0], top + 1.9), colour=colour)
        for number, (left, text) in enumerate(zip(lefts, words)):
            board.box(left, top, width, 3.8, text, colour, fill=0.18, size=8)
            end = lefts[number + 1] if number + 1 < len(lefts) else WIDTH - 4.6
            board.arrow((left + width, top + 1.9), (end, top + 1.9), colour=colour)
    return board.figure(caption)


@styled
def bit_layouts(formats: Mapping[str, tuple[int, int]], caption: str) -> Figure:
    """A number's bits, a row for each format: sign, exponent, mantissa.

    formats  name to its bits of exponent and of mantissa
    """
    board = Board(2.9 * len(formats) + 2.6)
    bit = (WIDTH - 13 - 9) / max(1 + sum(bits) for bits in formats.values())
    for number, (name, colour) in enumerate(BITS.items()):
        board.cell(12.5 + 11 * number, 0.5, 1.2, 1.2, colour)
        board.text(14.2 + 11 * number, 1.1, name, ha="left")
    for row, (name, (exponent, mantissa)) in enumerate(formats.items()):
        top, left = 2.7 + 2.9 * row, 12.5
        board.text(11.8, top + 1, name, ha="right")
        for kind, bits in zip(BITS, (1, exponent, mantissa)):
            for number in range(bits):
                board.cell(left + number * bit, top, bit, 2, BITS[kind])
            left += bits * bit
        board.text(left + 0.6, top + 1, f"1 + {exponent} + {mantissa}", ha="left")
    return board.figure(caption)
