"""What a figure asks of matplotlib, in lines: what is where, in which colour, how wide, with which words.

A change of the code that draws shows here though no number in a picture is wrong: a line of another width, a word in
another place. tests/test_show.py holds every kind of figure against drawn_figures.toml, and tests/test_views.py the
words, tables and controls of every view. After a change that is meant, look at what is drawn, and then store it:
`python tests/drawn_figures.py`.
"""

import hashlib
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, Rectangle

STORED = Path(__file__).with_suffix(".toml")


def digest(said: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


def stored() -> dict[str, str]:
    return tomllib.loads(STORED.read_text(encoding="utf-8"))


def lines(figure) -> Iterator[str]:
    """Leaves out what matplotlib chooses by itself, such as limits that follow the data, and places in a layout."""
    FigureCanvasAgg(figure.canvas).draw()  # else ticks have no words yet
    yield f"figure {_rounded(figure.canvas.get_size_inches())} {figure.caption}"
    for axes in figure.canvas.axes:
        titles = [axes.get_title(side) for side in ("left", "center", "right")]
        yield f"axes {axes.axison} {axes.get_aspect()} {titles} {axes.title.get_fontsize()} {axes.get_anchor()}"
        spines = [name for name, one in axes.spines.items() if one.get_visible()]
        yield f"spines {spines} {_colour(axes.get_facecolor())}"
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            automatic = axes.get_autoscalex_on() if axis is axes.xaxis else axes.get_autoscaley_on()
            limits = low > high if automatic else _rounded([low, high])
            ticks = [
                (
                    tick.label1.get_text(),
                    tick.label1.get_fontsize(),
                    tick.gridline.get_visible(),
                    tick.tick1line.get_visible(),
                )
                for tick in axis.get_major_ticks()
                if min(low, high) <= tick.get_loc() <= max(low, high)
            ]
            words = f"{axis.label.get_text()!r} {axis.label.get_fontsize()} {ticks if axes.axison else ''}"
            yield f"axis {axis.get_scale()} {limits} {words}"
        if legend := axes.get_legend():
            words = [(one.get_text(), one.get_fontsize()) for one in legend.get_texts()]
            anchor = _rounded(legend._bbox_to_anchor._bbox.bounds) if legend._bbox_to_anchor else ""
            yield f"legend {words} {legend._ncols} {legend._loc} {anchor} {legend.get_frame_on()}"
        yield from map(_line, (*axes.patches, *axes.lines, *axes.collections, *axes.images, *axes.texts))


def _line(artist) -> str:
    found = [type(artist).__name__, artist.get_zorder(), artist.get_alpha(), artist.get_label()]
    if hasattr(artist, "get_linewidth"):
        found += [np.atleast_1d(artist.get_linewidth()).tolist(), artist.get_linestyle()]
    for colour in ("color", "facecolor", "edgecolor", "markerfacecolor"):
        if hasattr(artist, f"get_{colour}"):
            found.append(_colour(getattr(artist, f"get_{colour}")()))
    if isinstance(artist, FancyArrowPatch):
        style = artist.get_arrowstyle()
        found += [*map(_rounded, artist._posA_posB), type(style).__name__, artist.get_mutation_scale(), artist.shrinkA]
    elif isinstance(artist, Rectangle):
        found += [_rounded([artist.get_x(), artist.get_y(), artist.get_width(), artist.get_height()])]
    elif hasattr(artist, "get_boxstyle"):
        found += [_rounded([artist.get_x(), artist.get_y(), artist.get_width(), artist.get_height()])]
        found += [type(artist.get_boxstyle()).__name__, artist.get_boxstyle().pad, artist.get_boxstyle().rounding_size]
    elif hasattr(artist, "get_xdata"):
        found += [_rounded(artist.get_xdata()), _rounded(artist.get_ydata()), artist.get_marker()]
        found += [artist.get_markersize()]
    elif hasattr(artist, "get_array") and artist.get_array() is not None:
        found += [np.shape(artist.get_array()), artist.get_cmap().name, artist.get_clim()]
        found += [_rounded(artist.get_extent())]
    elif hasattr(artist, "get_text"):
        found += [artist.get_text(), _rounded(artist.get_position()), artist.get_fontsize(), artist.get_rotation()]
        found += [artist.get_ha(), artist.get_va(), artist.get_fontweight()]
        found.append({"normal": 1.2}.get(artist._linespacing, artist._linespacing))  # its name before matplotlib 3.11
        if arrow := getattr(artist, "arrow_patch", None):
            found += [
                _rounded(artist.xy),
                _rounded(artist.xyann),
                arrow.get_linewidth(),
                _colour(arrow.get_edgecolor()),
            ]
            found += [type(arrow.get_arrowstyle()).__name__, arrow.shrinkA, arrow.shrinkB, arrow.get_mutation_scale()]
    if hasattr(artist, "get_hatch"):
        found.append(artist.get_hatch())
    return " ".join(map(str, found))


def _colour(colour) -> str:
    if isinstance(colour, str) and colour == "none":
        return colour
    if isinstance(colour, np.ndarray) and colour.ndim == 2:
        return str([to_hex(one, keep_alpha=True) for one in colour])
    return to_hex(colour, keep_alpha=True)


def _rounded(numbers) -> str:
    return "[" + " ".join(f"{float(number):.4g}" for number in numbers) + "]"


if __name__ == "__main__":
    import sys

    sys.path.insert(0, str(Path(__file__).parent))
    from test_show import ALSO_DRAWN, DRAWN
    from test_views import MAKERS, said

    found = {name: digest(lines(make())) for name, make in sorted((DRAWN | ALSO_DRAWN).items())}
    found |= {f"view {name}": digest(said(make())) for name, make in sorted(MAKERS.items())}
    STORED.write_text("".join(f'"{name}" = "{one}"\n' for name, one in found.items()), encoding="utf-8")
