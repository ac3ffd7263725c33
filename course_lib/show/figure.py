"""A drawing as SVG that follows light and dark, with its finding in words. Needs matplotlib; used by all of `show`.

A picture is narrow, so that its letters are legible on a phone; its caption is text beside it, never a part of it.
"""

import base64
import functools
import io
from html import escape

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas

# Okabe & Ito (2008), which colour-blind readers can tell apart, with an olive for their yellow, pale on white.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#999933", "#000000")
INK, PAPER, FAINT = "#000000", "#ffffff", "#cccccc"  # what changes between light and dark
ON_COLOUR = "#111111"  # letters on a light colour, the same in both

WIDTH_INCHES = 4.8  # on a page 360 pixels wide, letters of 9 points are then 9 pixels high
SHOWN_PIXELS = 600
STYLE = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": FAINT,
    "hatch.linewidth": 0.7,
    "svg.fonttype": "none",  # letters stay text
    "svg.hashsalt": "course_lib",  # the same drawing gives the same file
}
LIGHT, DARK = (
    {"ink": "#1f2328", "paper": "#ffffff", "faint": "#d0d4d9"},
    {"ink": "#dde2e7", "paper": "#14181e", "faint": "#454c55"},
)


class Figure:
    """A drawn canvas and the caption that carries its finding."""

    def __init__(self, canvas: Canvas, caption: str):
        self.canvas = canvas
        self.caption = caption

    def __repr__(self) -> str:
        return f"Figure: {self.caption}"

    @functools.cached_property
    def svg(self) -> str:
        """The picture alone, which a browser draws in its page's light or dark colours."""
        file = io.StringIO()
        with matplotlib.rc_context(STYLE):
            # savefig would draw twice, for the layout and for the file
            FigureCanvasSVG(self.canvas).print_svg(file, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        text = file.getvalue()
        for fixed, name in ((INK, "ink"), (PAPER, "paper"), (FAINT, "faint")):
            text = text.replace(fixed, f"var(--{name})")
        return f'<svg style="background: var(--paper)" {text[text.index("<svg ") + 5 :]}'.replace("<defs>", _CSS, 1)

    def html(self) -> str:
        """The picture and its caption as a part of a page, which loads no other file."""
        data, caption = base64.b64encode(self.svg.encode()).decode(), escape(self.caption)
        size = f'width="{SHOWN_PIXELS}" style="max-width: 100%"'
        image = f'<img alt="{caption}" src="data:image/svg+xml;base64,{data}" {size}>'
        return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        """IPython's hook. HTML, since JupyterLab hides the SVG, not the picture in HTML, of a notebook not yet run."""
        return {"text/plain": repr(self), "text/html": self.html()}


def styled(draw):
    """Decorate a function that draws: everything in it is drawn in the course's style."""

    @functools.wraps(draw)
    def drawn(*arguments, **settings):
        with matplotlib.rc_context(STYLE):
            return draw(*arguments, **settings)

    return drawn


def panels(count: int, height: float, columns: int = 2, **settings):
    """A canvas, and that many pairs of axes in rows of `columns`, each `height` inches high."""
    rows = -(-count // columns)
    canvas = Canvas(figsize=(WIDTH_INCHES, rows * height), layout="constrained")
    axes = list(canvas.subplots(rows, min(count, columns), squeeze=False, **settings).flat)
    for unused in axes[count:]:
        unused.axis("off")
    return canvas, axes[:count]


def _variables(colours: dict[str, str]) -> str:
    return "svg{" + ";".join(f"--{name}:{colour}" for name, colour in colours.items()) + "}"


_CSS = (
    f"<style>{_variables(LIGHT)}@media (prefers-color-scheme: dark){{{_variables(DARK)}}}"
    "text{fill:var(--ink)}image{image-rendering:pixelated}</style><defs>"
)
