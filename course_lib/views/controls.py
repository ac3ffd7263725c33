"""A view under controls: a picture, its finding in words, and a table of its numbers. Used by all views.

Standard library only until something is shown: then `show` draws, and ipywidgets
makes the controls where a kernel has it. Without it the still state is shown, which
is complete; on a page of the book, states that were drawn ahead answer the controls.
Only what ipywidgets 7.7 (Colab's) and 8 share is used.
"""

import functools
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from course_lib.errors import CourseError
from course_lib.table import Table

PLAY_MILLISECONDS = 600  # from one picture to the next: longer than one takes to be drawn
WIDGET = "application/vnd.jupyter.widget-view+json"
Values = Mapping[str, object]


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


@dataclass(frozen=True)
class Choice:
    """A control that offers options.

    allowed  (option, values of the controls before) to whether it can be taken now; all, always, by default
    ahead    the options on a page without a kernel; () is all
    """

    label: str
    options: Sequence[object]
    allowed: Callable[[object, Values], bool] = lambda option, values: True
    ahead: Sequence[object] = ()
    plays = False

    def drawn_ahead(self, before: Sequence[Values]) -> list:
        return list(self.ahead or self.options)

    def now(self, values: Values) -> list:
        return [option for option in self.options if self.allowed(option, values)]

    def clamped(self, value, values: Values):
        """The value, or the nearest option that is allowed. Raises CourseError for a value that is not an option."""
        if value not in self.options:
            raise CourseError(f"{self.label!r} is one of {', '.join(map(str, self.options))}, not {value!r}.")
        place = self.options.index(value)
        return min(self.now(values), key=lambda option: abs(self.options.index(option) - place))

    def widget(self, value, values: Values, widgets):
        return widgets.Dropdown(options=self.now(values), value=value, description=self.label, style=WIDE_LABEL)

    def move(self, widget, value, values: Values) -> None:
        if list(widget.options) != self.now(values):
            widget.options = self.now(values)
        widget.value = value


@dataclass(frozen=True)
class Range:
    """A control for a whole number.

    low, high, step  numbers, or functions of the values of the controls before
    plays            has a button that moves it on by itself
    ahead            the numbers on a page without a kernel; () is all
    """

    label: str
    low: int | Callable[[Values], int]
    high: int | Callable[[Values], int]
    step: int | Callable[[Values], int] = 1
    plays: bool = False
    ahead: Sequence[int] = ()

    def drawn_ahead(self, before: Sequence[Values]) -> list[int]:
        """The numbers that some state of the controls before, of all that `before` holds, lets it take."""
        ranges = {self.now(values) for values in before}
        return list(self.ahead) or sorted({n for low, high, step in ranges for n in range(low, high + 1, step)})

    def now(self, values: Values) -> tuple[int, int, int]:
        return tuple(bound(values) if callable(bound) else bound for bound in (self.low, self.high, self.step))

    def clamped(self, value, values: Values) -> int:
        """The nearest number that can be taken now. Raises CourseError for a value that is not a number."""
        low, high, step = self.now(values)
        value = min(max(_number(self.label, value), low), high)
        return min(low + step * round((value - low) / step), low + step * ((high - low) // step))

    def widget(self, value, values: Values, widgets):
        low, high, step = self.now(values)
        settings = {"description": self.label, "style": WIDE_LABEL, "continuous_update": False}
        return widgets.IntSlider(value=value, min=low, max=high, step=step, **settings)

    def move(self, widget, value, values: Values) -> None:
        low, high, step = self.now(values)
        widget.min, widget.max, widget.step = min(low, widget.max), max(high, widget.min), step  # never crossed
        widget.value = value
        widget.min, widget.max = low, high

    def player(self, widget, widgets):
        """A Play button that the front end keeps at the slider's place."""
        play = widgets.Play(
            value=widget.value, min=widget.min, max=widget.max, step=widget.step, interval=PLAY_MILLISECONDS
        )
        for trait in ("min", "max", "step", "value"):
            widgets.jslink((widget, trait), (play, trait))
        return play


@dataclass(frozen=True)
class LogRange:
    """A slider for a number above 0 that moves by factors of 10**step.

    ahead  the numbers on a page without a kernel
    """

    label: str
    low: float
    high: float
    ahead: Sequence[float]
    step: float = 0.05
    plays = False

    def drawn_ahead(self, before: Sequence[Values]) -> list[float]:
        return list(self.ahead)

    def clamped(self, value, values: Values) -> float:
        """The value, or the end that it is beyond. Raises CourseError for a value that is not a number."""
        return min(max(float(_number(self.label, value)), self.low), self.high)

    def widget(self, value, values: Values, widgets):
        settings = {"description": self.label, "style": WIDE_LABEL, "continuous_update": False, "readout_format": ".4g"}
        return widgets.FloatLogSlider(
            value=value, min=math.log10(self.low), max=math.log10(self.high), step=self.step, **settings
        )

    def move(self, widget, value, values: Values) -> None:
        widget.value = value


WIDE_LABEL = {"description_width": "initial"}


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
        """An ipywidgets.VBox: a widget per control, in their order, Play buttons, and an HTML widget with the view."""
        import ipywidgets

        before: dict[str, object] = {}
        widgets = {}
        for name, control in self.controls.items():
            widgets[name] = control.widget(self.start[name], before, ipywidgets)
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
        playing = [name for name, control in self.controls.items() if isinstance(control, Range) and control.plays]
        players = [self.controls[name].player(widgets[name], ipywidgets) for name in playing]
        return ipywidgets.VBox([*widgets.values(), *players, shown])

    def __repr__(self) -> str:
        return repr(self.still)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        """IPython's hook: words and table for every front end, and the controls where they work."""
        still, start = self.still, escape(json.dumps({name: str(value) for name, value in self.start.items()}))
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


def _number(label: str, value) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise CourseError(f"{label!r} is a number, not {value!r}.")
    return value
