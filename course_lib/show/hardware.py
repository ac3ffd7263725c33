"""Schematics of a chip: its parts, their speeds, and the roofline that these make. Needs matplotlib; notebooks/05."""

from collections.abc import Mapping

from course_lib.show.board import WIDTH, Board
from course_lib.show.figure import COLOURS, INK, Figure, panels, styled


@styled
def chip(parts: Mapping[str, str], caption: str) -> Figure:
    """A chip: its memory, its multipliers and its links to other chips, each with its size or speed in words.

    parts  the words for "chip", "memory", "read", "multipliers", "links"
    """
    board = Board(17)
    board.box(6, 2.6, WIDTH - 12, 13.8)
    board.text(WIDTH / 2, 1.2, parts["chip"], weight="bold")
    board.box(8, 5.5, 11, 8, parts["memory"], COLOURS[2], fill=0.18)
    board.box(WIDTH - 19, 5.5, 11, 8, parts["multipliers"], COLOURS[0], fill=0.18)
    board.arrow((19, 9.5), (WIDTH - 19, 9.5), both=True, colour=COLOURS[5], width=2)
    board.text(WIDTH / 2, 7.6, parts["read"])
    for x, end in ((6, 0.5), (WIDTH - 6, WIDTH - 0.5)):
        for y in (6.5, 12.5):
            board.arrow((x, y), (end, y), both=True, colour=COLOURS[3])
    board.text(WIDTH / 2, 15, parts["links"], colour=INK)
    return board.figure(caption)


@styled
def roofline(
    points: Mapping[str, tuple[float, float]], flops_per_second: float, read_per_second: float, caption: str
) -> Figure:
    """The most arithmetic per second that a chip can do, by how much is done with each byte of its memory.

    points  name to a program's (flops, bytes read and written); each stands on the roof, at its best speed
    Source  Williams, Waterman & Patterson (2009), "Roofline", Communications of the ACM 52(4)
    """
    canvas, (axes,) = panels(1, 2.8)
    ridge = flops_per_second / read_per_second  # flops a byte
    intensities = {name: flops / size for name, (flops, size) in points.items()}
    least, most = min(*intensities.values(), ridge) / 4, max(*intensities.values(), ridge) * 4
    tera = flops_per_second / 1e12
    axes.plot([least, ridge, most], [tera * least / ridge, tera, tera], color=INK)
    for number, (name, intensity) in enumerate(intensities.items()):
        height = tera * min(1, intensity / ridge)
        axes.plot([intensity], [height], color=COLOURS[number], marker="osD^vPX*"[number], markersize=7)
        axes.annotate(name, (intensity, height), (6, -10), textcoords="offset points", fontsize=8.5)
    axes.annotate(f"{ridge:,.0f} flops a byte", (ridge, tera), (0, 4), textcoords="offset points", ha="center")
    axes.set(xscale="log", yscale="log", xlabel="flops done with each byte of memory", ylabel="Tflop/s at most")
    return Figure(canvas, caption)
