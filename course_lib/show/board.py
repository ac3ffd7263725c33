"""A board to draw systems on: boxes, arrows and words in one unit, a tenth of an inch. Needs matplotlib."""

from matplotlib.figure import Figure as Canvas
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from course_lib.show.figure import INK, PAPER, WIDTH_INCHES, Figure

WIDTH = 10 * WIDTH_INCHES  # units; a letter of 9 points is about 0.75 wide and 1.25 high


class Board:
    """An empty drawing, WIDTH units wide; x runs to the right and y down.

    height  in units
    """

    def __init__(self, height: float):
        self._canvas = Canvas(figsize=(WIDTH_INCHES, height / 10))
        self._axes = self._canvas.add_axes((0, 0, 1, 1))
        self._axes.set(xlim=(0, WIDTH), ylim=(height, 0))
        self._axes.axis("off")

    def box(self, x, y, width, height, text="", colour=INK, fill=0.0, **words) -> None:
        """A box with rounded corners and text in its middle; `fill` is the share of its colour in its inside."""
        shape = FancyBboxPatch((x, y), width, height, "round, pad=0, rounding_size=0.5", linewidth=1.1)
        self._axes.add_patch(shape)
        shape.set(edgecolor=colour, facecolor=(colour, fill) if fill else "none")
        if text:
            self.text(x + width / 2, y + height / 2, text, **words)

    def cell(self, x, y, width, height, colour, fill=1.0, hatch="") -> None:
        """A block of an array or of time: square corners, a thin gap of paper around it."""
        style = {"facecolor": (colour, fill), "edgecolor": PAPER, "hatch": hatch, "linewidth": 0.8}
        self._axes.add_patch(Rectangle((x, y), width, height, **style))

    def line(self, points, colour=INK, width=1.0) -> None:
        """A line through (x, y) points."""
        xs, ys = zip(*points)
        self._axes.plot(xs, ys, color=colour, linewidth=width, zorder=1)

    def arrow(self, start, end, colour=INK, both=False, width=1.3) -> None:
        """An arrow from (x, y) to (x, y), with a head at its start too if `both`."""
        style = {"arrowstyle": "<|-|>" if both else "-|>", "mutation_scale": 8, "shrinkA": 0, "shrinkB": 0}
        self._axes.add_patch(FancyArrowPatch(start, end, color=colour, linewidth=width, **style))

    def text(self, x, y, text, size=8.5, ha="center", va="center", colour=INK, **style) -> None:
        """Words, around or from (x, y)."""
        self._axes.text(x, y, text, fontsize=size, ha=ha, va=va, color=colour, linespacing=1.25, **style)

    def figure(self, caption: str) -> Figure:
        return Figure(self._canvas, caption)
