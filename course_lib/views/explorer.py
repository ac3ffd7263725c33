"""A view under controls: a picture, its finding in words, and a table of its numbers. Used by all views.

Standard library only until something is shown: then `show` draws, and ipywidgets
makes the controls where a kernel has it. Without it the still state is shown, which
is complete; on a page of the book, states that were drawn ahead answer the controls.
Only what ipywidgets 7.7 (Colab's) and 8 share is used.
"""

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from course_lib.errors import CourseError
from course_lib.table import Table
from course_lib.views.controls import Values, as_text

WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class View:
    """One state of what is shown.

    figure   a `show.Figure`, whose caption carries the finding
    headers  of the table of the same numbers, one per column
    rows     its cells; the first of a row names it
    command  for a terminal, which answers the same question in more detail
    """

    figure: object
    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    command: str = ""

    @property
    def caption(self) -> str:
        return self.figure.caption

    def __repr__(self) -> str:
        parts = (self.caption, repr(Table(self.headers, self.rows)), self.command and f"In a terminal: {self.command}")
        return "\n\n".join(filter(None, parts))

    def _repr_html_(self) -> str:
        return (
            self.figure.html()
            + Table(self.headers, self.rows)._repr_html_()
            + (f"<p>In a terminal: <code>{escape(self.command)}</code></p>" if self.command else "")
        )


class Explorer:
    """A view, its controls and their first values; a cell that ends with it shows it.

    view      a function of the controls' values to a View, without side effects
    controls  name of an argument to its control, in an order in which each depends on those before
    start     the controls' first values; each is moved to the nearest that is allowed
    Raises    CourseError for a name without a control, or a value of another kind
    """

    def __init__(self, view: Callable[..., View], controls: Mapping[str, object], start: Values):
        unknown = [name for name in start if name not in controls]
        if unknown:
            raise CourseError(f"this view has no {unknown[0]!r}: it takes {', '.join(controls)}.")
        self._view, self.controls = view, controls
        self.start = self.clamped(start)

    def clamped(self, values: Values) -> dict[str, object]:
        """The values that the controls take: each the nearest to what was given that those before it allow."""
        taken: dict[str, object] = {}
        for name, control in self.controls.items():
            taken[name] = control.clamped(values[name], taken)
        return taken

    def view(self, **values) -> View:
        """The view at other values; those not given stay where they start."""
        return Explorer(self._view, self.controls, {**self.start, **values}).still

    @property
    def still(self) -> View:
        """The view before anyone touches a control."""
        return self._view(**self.start)

    @property
    def name(self) -> str:
        return self._view.__name__

    def drawn_ahead(self) -> tuple[dict[str, list], list[tuple[tuple[int, ...], dict[str, object]]]]:
        """What a page without a kernel offers: a control's values, and where each choice of them leads.

        Returns  name of a control to its values, and for each way to choose one of each, by
                 their places, the values that the controls then take
        """
        offered: dict[str, list] = {}
        ways: list[tuple[tuple[int, ...], dict[str, object]]] = [((), {})]
        for name, control in self.controls.items():
            offered[name] = control.drawn_ahead([taken for _, taken in ways])
            ways = [
                ((*places, place), {**taken, name: control.clamped(value, taken)})
                for places, taken in ways
                for place, value in enumerate(offered[name])
            ]
        return offered, [(places, taken) for places, taken in ways if all(taken[n] in offered[n] for n in offered)]

    def panel(self):
        """An ipywidgets.HBox: beside each other, or below on a narrow page, a box of controls and the view.

        The box has a widget per control, in their order, and Play buttons; the view is an HTML widget.
        """
        import ipywidgets

        before: dict[str, object] = {}
        widgets = {}
        label_width = 0.55 * max(len(control.label) for control in self.controls.values()) + 1  # em
        style = {"description_width": f"{label_width:.0f}em"}
        for name, control in self.controls.items():
            widgets[name] = control.widget(self.start[name], before, ipywidgets, style)
            before[name] = self.start[name]
        shown = ipywidgets.HTML(self.still._repr_html_())
        moving = []  # a control that moves another one would draw twice

        def follow(_):
            if moving:
                return
            moving.append(True)
            try:
                values = self.clamped({name: widget.value for name, widget in widgets.items()})
                for name, control in self.controls.items():
                    control.move(widgets[name], values[name], values)
                shown.value = self._view(**values)._repr_html_()
            finally:
                moving.clear()

        for widget in widgets.values():
            widget.observe(follow, names="value")
        playing = [name for name, control in self.controls.items() if control.plays]
        players = [self.controls[name].player(widgets[name], ipywidgets) for name in playing]
        for widget in (*widgets.values(), *players):
            widget.layout.width = "auto"
        shown.add_class("jp-RenderedHTMLCommon")  # JupyterLab's own look of tables
        shown.layout.flex, shown.layout.min_width = "1 1 24em", "20em"
        box = ipywidgets.VBox([*widgets.values(), *players], layout={"flex": f"0 1 {label_width + 14:.0f}em"})
        panel = ipywidgets.HBox([box, shown], layout={"flex_flow": "row wrap"})
        panel.add_class("course-panel")
        return panel

    def __repr__(self) -> str:
        return repr(self.still)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        """IPython's hook: words and table for every front end, and the controls where they work."""
        still, start = self.still, escape(json.dumps({name: as_text(value) for name, value in self.start.items()}))
        page = f'<div class="course-view" data-view="{self.name}" data-start="{start}">{still._repr_html_()}</div>'
        bundle = {"text/plain": repr(still), "text/html": page}
        if _controls_work():
            bundle[WIDGET] = {"version_major": 2, "version_minor": 0, "model_id": self.panel().model_id}
        return bundle


def explorer(**controls) -> Callable[[Callable[..., View]], Callable[..., Explorer]]:
    """Decorate a view: calling it gives an Explorer that starts at the arguments, or at their defaults."""

    def decorate(view: Callable[..., View]) -> Callable[..., Explorer]:
        defaults = {name: parameter.default for name, parameter in inspect.signature(view).parameters.items()}

        @functools.wraps(view)
        def started(**start) -> Explorer:
            return Explorer(view, controls, {**defaults, **start})

        return started

    return decorate


def _controls_work() -> bool:
    """Whether ipywidgets is here, and a kernel that a front end's widgets can talk to."""
    try:
        import ipywidgets  # noqa: F401
        from IPython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None
