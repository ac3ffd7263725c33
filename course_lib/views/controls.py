"""The controls of views: which values each can take, and its widget of ipywidgets. Standard library only."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from course_lib.errors import CourseError

PLAY_SECONDS = 0.6  # from one picture to the next
Values = Mapping[str, object]


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

    def widget(self, value, values: Values, widgets, style):
        return widgets.Dropdown(options=self.now(values), value=value, description=self.label, style=style)

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

    def widget(self, value, values: Values, widgets, style):
        low, high, step = self.now(values)
        return widgets.IntSlider(value=value, min=low, max=high, step=step, description=self.label, style=style)

    def move(self, widget, value, values: Values) -> None:
        low, high, step = self.now(values)
        widget.min, widget.max, widget.step = min(low, widget.max), max(high, widget.min), step  # never crossed
        widget.value = value
        widget.min, widget.max = low, high

    def player(self, slider, widgets):
        """A button that moves the slider on, again from its start when it is at the end; pressed once more, it stops.

        ipywidgets' own Play moves in the front end and runs away from the pictures; this waits for each.
        """
        button = widgets.ToggleButton(description=f"Play {self.label}", icon="play")

        async def play():
            if slider.value == slider.max:
                slider.value = slider.min
            while button.value and slider.value < slider.max:
                await asyncio.sleep(PLAY_SECONDS)
                slider.value += slider.step
            button.value = False

        button.observe(lambda change: change["new"] and asyncio.ensure_future(play()), names="value")
        return button


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

    def widget(self, value, values: Values, widgets, style):
        settings = {"description": self.label, "style": style, "readout_format": ".4g"}
        return widgets.FloatLogSlider(
            value=value, min=math.log10(self.low), max=math.log10(self.high), step=self.step, **settings
        )

    def move(self, widget, value, values: Values) -> None:
        widget.value = value


def as_text(value) -> str:
    """A control's value, as a page without a kernel names it."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _number(label: str, value) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise CourseError(f"{label!r} is a number, not {value!r}.")
    return value
