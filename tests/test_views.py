"""The views: their numbers come from the lessons' functions, their controls move them, and they work without any."""

import argparse
import asyncio
import json
import math
import random
import re
import statistics
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import drawn_figures
import nbformat
import numpy as np
import pytest
from installed import need
from nbval.plugin import get_sanitize_patterns

from course_lib import collectives, pipeline, planner, precision, views
from course_lib.errors import CourseError
from course_lib.planner import models_by_numbers, plan_command
from course_lib.staff import store_outputs
from course_lib.views import (
    controls,
    formats_view,
    memory_view,
    pipeline_view,
    recovery_view,
    staleness_view,
    strategy_view,
)
from course_lib.views import explorer as views_explorer

LESSONS = Path(__file__).parents[1] / "notebooks"
MAKERS = {name: getattr(views, name) for name in views.__all__}
each_view = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


class Reader(HTMLParser):
    """Tags with their attributes, and the text of each."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self._open = [], [], []
        self.feed(text)
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._open += [] if tag == "img" else [tag]

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self._open[-1], data))

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    def text(self, tag):
        return [text for name, text in self.texts if name == tag]


def states(explorer, most=12):
    """Some states of all controls, each clamped; the still one first."""
    rng = random.Random(0)

    def drawn(control):
        if isinstance(control, controls.Choice):
            return rng.choice(control.options)
        if isinstance(control, controls.LogRange):
            return 10 ** rng.uniform(math.log10(control.low), math.log10(control.high))
        return rng.randint(-2, 20)

    wanted = [{name: drawn(control) for name, control in explorer.controls.items()} for _ in range(most)]
    return [explorer.start, *(explorer.clamped(values) for values in wanted)]


def column(view, header):
    place = list(view.headers).index(header)
    return [row[place] for row in view.rows]


# Controls by hand, and what every view says


def even(option, values):
    return option % 2 == 0 or values.get("odd")


def test_a_choice_by_hand():
    choice = controls.Choice("pick", (1, 2, 3, 4), even, ahead=(2, 4))
    assert (choice.now({}), choice.now({"odd": True})) == ([2, 4], [1, 2, 3, 4])
    assert [choice.clamped(value, {}) for value in (1, 2, 3, 4)] == [2, 2, 2, 4] and choice.clamped(3, {"odd": 1}) == 3
    assert (choice.drawn_ahead([{}]), controls.Choice("any", "ab").drawn_ahead([{}])) == ([2, 4], ["a", "b"])
    assert controls.Choice("any", "ab").now({}) == ["a", "b"] and not choice.plays
    with pytest.raises(CourseError, match="^'pick' is one of 1, 2, 3, 4, not 5.$"):
        choice.clamped(5, {})
    made = SimpleNamespace(Dropdown=lambda **settings: SimpleNamespace(**settings))
    widget = choice.widget(2, {}, made, "narrow")
    assert vars(widget) == {"options": [2, 4], "value": 2, "description": "pick", "style": "narrow"}
    choice.move(widget, 3, {"odd": True})
    assert (widget.options, widget.value) == ([1, 2, 3, 4], 3)


def test_a_range_by_hand():
    plain = controls.Range("rows", 3, 9)
    assert (plain.now({}), plain.plays, plain.drawn_ahead([{}])) == ((3, 9, 1), False, [3, 4, 5, 6, 7, 8, 9])
    by_three = controls.Range("rows", 2, lambda values: values["last"], lambda values: 3, ahead=())
    assert by_three.now({"last": 9}) == (2, 9, 3)
    assert by_three.drawn_ahead([{"last": 6}, {"last": 9}]) == [2, 5, 8]
    assert [by_three.clamped(value, {"last": 9}) for value in (-5, 2, 3, 4, 5.4, 7, 9, 99)] == [2, 2, 2, 5, 5, 8, 8, 8]
    assert controls.Range("rows", 1, 9, ahead=(2, 4)).drawn_ahead([{}]) == [2, 4]
    made = SimpleNamespace(IntSlider=lambda **settings: SimpleNamespace(**settings))
    widget = by_three.widget(5, {"last": 9}, made, "narrow")
    settings = {"value": 5, "min": 2, "max": 9, "step": 3, "description": "rows", "style": "narrow"}
    assert vars(widget) == settings
    plain.move(widget, 4, {})
    assert (widget.value, widget.min, widget.max, widget.step) == (4, 3, 9, 1)


def test_a_slider_that_moves_never_has_its_ends_crossed():
    class Slider:
        low, high, step, value = 5, 6, 1, 5
        min = property(lambda self: self.low, lambda self, to: self.check(to, self.high, "low", to))
        max = property(lambda self: self.high, lambda self, to: self.check(self.low, to, "high", to))

        def check(self, low, high, name, to):
            assert low <= high
            setattr(self, name, to)

    for low, high in ((1, 2), (8, 9), (5, 5)):
        slider = Slider()
        controls.Range("x", low, high).move(slider, low, {})
        assert (slider.min, slider.max, slider.value) == (low, high, low)


def test_a_range_of_factors_by_hand():
    factors = controls.LogRange("size", 0.1, 100.0, (1.0, 10.0))
    assert [factors.clamped(value, {}) for value in (0.01, 5, 1e9)] == [0.1, 5.0, 100.0]
    assert (factors.drawn_ahead([{}]), factors.plays, factors.step) == ([1.0, 10.0], False, 0.05)
    made = SimpleNamespace(FloatLogSlider=lambda **settings: SimpleNamespace(**settings))
    widget = factors.widget(5.0, {}, made, "narrow")
    slider = {"value": 5.0, "min": -1.0, "max": 2.0, "step": 0.05}
    assert vars(widget) == {**slider, "description": "size", "style": "narrow", "readout_format": ".4g"}
    factors.move(widget, 7.0, {})
    assert widget.value == 7.0
    for wrong in (True, "5", math.nan, None):
        with pytest.raises(CourseError, match="^'size' is a number, not "):
            factors.clamped(wrong, {})
    assert [controls.as_text(value) for value in (1.0, 0.12345678, 3, "a")] == ["1", "0.123457", "3", "a"]


def test_a_button_plays_a_range_from_its_start_when_it_is_at_its_end(monkeypatch):
    waited = []

    async def at_once(seconds):
        waited.append(seconds)
        assert len(waited) < 9, "it never ends"

    class Button(SimpleNamespace):
        def observe(self, call, names):
            self.call = call
            assert names == "value"

    slider = SimpleNamespace(value=9, min=3, max=9, step=3)
    made = SimpleNamespace(ToggleButton=lambda **settings: Button(value=True, **settings))
    button = controls.Range("rows", 3, 9, 3, plays=True).player(slider, made)
    assert (button.description, button.icon) == ("Play rows", "play")

    async def pressed():
        assert not button.call({"new": False})
        await button.call({"new": True})

    with monkeypatch.context() as patch:
        patch.setattr(controls.asyncio, "sleep", at_once)
        asyncio.run(pressed())
    assert waited == [0.6, 0.6] and (slider.value, button.value) == (9, False)


def said(explorer) -> list[str]:
    """Everything of a view but its pictures: words and tables of some states, and its controls."""
    lines = [repr(explorer.view(**values)) for values in states(explorer, most=8)]
    panel = explorer.panel()
    box, shown = panel.children
    for one in (panel, box, shown, *box.children):
        names = ("description", "min", "max", "step", "options", "icon", "readout_format", "_dom_classes")
        lines.append(f"{type(one).__name__} {[getattr(one, name, None) for name in names]}")
        style = getattr(getattr(one, "style", None), "description_width", None)
        lines.append(f"{style} {[getattr(one.layout, name) for name in ('flex', 'flex_flow', 'width', 'min_width')]}")
    return lines


@each_view
def test_no_word_number_or_control_of_a_view_has_changed(make):
    """What the tests below hold against lessons and planner is some of it; see drawn_figures.py."""
    lines = said(make())
    (name,) = (name for name, one in MAKERS.items() if one is make)
    assert drawn_figures.digest(lines) == drawn_figures.stored()[f"view {name}"], "\n".join(lines)


# What is shown


@each_view
def test_the_still_state_is_a_picture_in_words_and_a_table(make):
    explorer = make()
    bundle = explorer._repr_mimebundle_()
    read = Reader(bundle["text/html"])
    (image,) = read.all("img")
    assert image["alt"] == explorer.still.caption == "".join(read.text("figcaption"))
    assert image["src"].startswith("data:image/svg+xml;base64,PHN2Z")
    scopes = [attributes["scope"] for attributes in read.all("th")]
    columns, names = explorer.still.headers, [row[0] for row in explorer.still.rows]
    assert scopes == ["col" for header in columns if header] + ["row" for name in names if name]
    assert len(scopes) + len(read.all("td")) == len(columns) * (1 + len(names))  # an empty header is a plain cell
    assert (
        bundle["text/plain"].startswith(explorer.still.caption) and explorer.still.headers[-1] in bundle["text/plain"]
    )
    assert bundle.keys() == {"text/plain", "text/html"}, "no kernel runs here, so nobody could move a control"


@each_view
def test_any_state_is_drawn_and_says_what_it_found(make):
    explorer = make()
    captions = {}
    for values in states(explorer):
        view = explorer.view(**values)
        read = Reader(view._repr_html_())
        assert all(len(row) == len(view.headers) for row in view.rows)
        assert read.all("img")[0]["alt"] == view.caption
        assert captions.setdefault(view.caption, view.rows) == view.rows, "two findings, one caption"
    assert len(captions) > 3


@each_view
def test_shown_twice_it_is_the_same(make):
    assert repr(make().still) == repr(make().still)
    assert make().still._repr_html_() == make().still._repr_html_()


# Controls


def parts(explorer):
    """The widgets of a panel: those of its box of controls, and the view."""
    box, shown = explorer.panel().children
    return box.children, shown


def test_play_waits_for_each_picture_and_ends_at_the_last(monkeypatch):
    (_, _, rounds, play), shown = parts(views.all_reduce(round=4))
    captions = []
    shown.observe(lambda change: captions.append(change["new"]), names="value")
    monkeypatch.setattr(controls, "PLAY_SECONDS", 0)

    async def pressed(until):
        play.value = True
        while play.value and not until():
            await asyncio.sleep(0)
        play.value = False
        await asyncio.sleep(0.01)

    asyncio.run(pressed(lambda: False))
    assert (rounds.value, len(captions)) == (6, 2) and "after 6 of 6" in shown.value
    asyncio.run(pressed(lambda: rounds.value == 2))  # from the start again, and stopped on the way
    assert rounds.value in (2, 3) and f"after {rounds.value} of 6" in shown.value


@each_view
def test_moving_a_control_changes_what_is_shown(make):
    explorer = make()
    widgets, shown = parts(explorer)
    assert shown.value == explorer.still._repr_html_()
    for widget, (name, control) in zip(widgets, explorer.controls.items()):
        assert widget.description == control.label
        before, start = shown.value, widget.value
        if isinstance(control, controls.Choice):
            widget.value = next(option for option in reversed(widget.options) if option != start)
        else:
            widget.value = widget.min if isinstance(control, controls.Range) and start != widget.min else widget.max / 2
        assert shown.value != before, name
        now = {name: widget.value for name, widget in zip(explorer.controls, widgets)}
        assert shown.value == explorer.view(**now)._repr_html_()


@each_view
def test_a_panel_follows_any_jump(make):
    """Values as a front end sends them, in any order: dependent ranges move along, and nothing fails."""
    explorer = make()
    widgets, shown = parts(explorer)
    for values in states(explorer, 5):
        for name, widget in zip(explorer.controls, widgets):
            if isinstance(explorer.controls[name], controls.Choice):
                widget.value = values[name] if values[name] in widget.options else widget.value
            else:
                widget.value = values[name]
        now = {name: widget.value for name, widget in zip(explorer.controls, widgets)}
        assert explorer.clamped(now) == now
        assert shown.value == explorer.view(**now)._repr_html_()


def test_a_range_that_another_control_sets_moves_with_it():
    (algorithm, workers, rounds, _), shown = parts(views.all_reduce(workers=8, round=14))
    assert (rounds.value, rounds.max) == (14, 14)
    workers.value = 2
    assert (rounds.value, rounds.max) == (2, 2)
    assert "after 2 of 2 rounds" in shown.value
    algorithm.value, workers.value = "naive", 5
    assert (rounds.value, rounds.max) == (2, 8)


def test_options_that_another_control_rules_out_are_not_offered():
    widgets, _ = parts(views.memory(model="llama2-7b", tensor=8, precision="float8_master"))
    model, chip, _, tensor, *_, precision_now = widgets
    chip.value, model.value = "v100-32gb", "gpt2-124m"  # no bfloat16 or float8 there; 12 heads
    assert tensor.value == 4 and 8 not in tensor.options
    assert set(precision_now.options) == {"float32", "mixed_float16", "float16_master"}


def test_what_a_control_cannot_take_is_moved_or_refused_in_one_line():
    assert views.all_reduce(workers=99, round=99).start == {"algorithm": "ring", "workers": 8, "round": 14}
    assert views.all_reduce(round=-5).start["round"] == 0
    assert views.pipeline(schedule="interleaved", stages=5, micro_batches=12).start["micro_batches"] == 10
    assert views.formats(value=0).start["value"] == 1e-46
    wrong = [
        lambda: views.all_reduce(algorithm="star"),
        lambda: views.all_reduce(size=3),
        lambda: views.all_reduce(workers="two"),
    ]
    for ask in [*wrong, lambda: views.formats(value=math.nan), lambda: views.memory().view(data=3)]:
        with pytest.raises(CourseError) as raised:
            ask()
        assert "\n" not in str(raised.value)


@each_view
def test_what_a_page_without_a_kernel_offers_is_what_the_controls_take(make):
    explorer = make()
    offered, ways = explorer.drawn_ahead()
    assert len({places for places, _ in ways}) == len(ways) < 400
    for places, taken in ways:
        chosen = {name: offered[name][place] for name, place in zip(offered, places)}
        assert explorer.clamped(chosen) == taken == explorer.clamped(taken)
        assert all(value in offered[name] for name, value in taken.items())


def test_lessons_begin_where_a_page_without_a_kernel_can():
    begun = []
    for path in LESSONS.glob("*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            *_, last = cell.source.splitlines() or [""]
            if cell.cell_type == "code" and last.startswith("views."):
                explorer = eval(last, {"views": views})
                offered, _ = explorer.drawn_ahead()
                assert all(value in offered[name] for name, value in explorer.start.items()), path
                assert f'data-view="{explorer.name}"' in cell.outputs[-1].data["text/html"], path
                begun.append(explorer.name)
    assert sorted(begun) == sorted(views.__all__)


@each_view
def test_without_ipywidgets_the_text_and_the_picture_are_there(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    in_a_kernel(monkeypatch)
    assert make()._repr_mimebundle_().keys() == {"text/plain", "text/html"}


def test_in_a_kernel_the_controls_come_too(monkeypatch):
    need("ipywidgets")  # before the kernel is feigned: version 7 would look for its comms when imported
    in_a_kernel(monkeypatch)
    bundle = views.all_reduce()._repr_mimebundle_()
    assert bundle[views_explorer.WIDGET]["model_id"] and "<table>" in bundle["text/html"]


def in_a_kernel(monkeypatch):
    import IPython

    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=object()))


def test_a_stored_notebook_keeps_words_and_picture_and_no_widget():
    data = {"text/plain": "words", "text/html": "<p>words</p>", views_explorer.WIDGET: {"model_id": "1"}}
    output = nbformat.v4.new_output("execute_result", data, metadata={views_explorer.WIDGET: {}}, execution_count=1)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("views.memory()", outputs=[output])])
    notebook.metadata.widgets = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    cleaned = store_outputs.clean(notebook, "x")
    assert cleaned.cells[0].outputs[0].data == {"text/plain": "words", "text/html": "<p>words</p>"}
    assert cleaned.cells[0].outputs[0].metadata == {} and "widgets" not in cleaned.metadata


def test_a_picture_in_html_is_not_compared_but_what_stands_beside_it_is():
    """Whatever its letters are: "+3x/" alone would count as a ratio."""
    patterns = get_sanitize_patterns((LESSONS.parent / "tests/sanitize.cfg").read_text())

    def compared(picture, caption):
        text = f'<img alt="{caption}" src="data:image/svg+xml;base64,{picture}">'
        for pattern, replacement in patterns:
            text = re.sub(pattern, replacement, text)
        return text

    assert compared("iVBOR+3x/tmp/tmpa==", "half") == compared("iVBOR0KGgo", "half") != compared("iVBOR0KGgo", "whole")


@each_view
def test_how_long_a_move_takes(make, capsys):
    """Printed, not asserted: it moves with what else the machine does."""
    explorer = make()
    explorer.still._repr_html_()
    elapsed, alone = [], []
    for values in states(explorer, 8):
        began, worked = time.perf_counter(), time.thread_time()
        explorer.view(**values)._repr_html_()
        elapsed.append(1e3 * (time.perf_counter() - began))
        alone.append(1e3 * (time.thread_time() - worked))
    with capsys.disabled():
        print(
            f" {make.__name__}: {statistics.median(elapsed):.0f} ms, of this thread {statistics.median(alone):.0f} ms",
            end="",
        )


# Each view's numbers


@pytest.mark.parametrize("workers", range(2, 9))
def test_a_ring_sends_its_share_of_the_buffer(workers):
    view = views.all_reduce(algorithm="ring", workers=workers, round=99).still
    in_all = 2 * (workers - 1) / workers * 840
    for header in ("sent so far, B", "received so far, B", "sends in all, B"):
        assert [int(cell.replace(",", "")) for cell in column(view, header)] == [in_all] * workers
    half = views.all_reduce(algorithm="ring", workers=workers, round=workers - 1).still
    assert [int(cell.replace(",", "")) for cell in column(half, "sent so far, B")] == [in_all / 2] * workers


@pytest.mark.parametrize("algorithm", ["naive", "tree", "ring"])
def test_the_counts_are_the_ledgers_at_every_round(algorithm):
    _, network = getattr(collectives, f"{algorithm}_all_reduce")([np.ones(840, "uint8")] * 5)
    for count in range(network.rounds + 1):
        view = views.all_reduce(algorithm=algorithm, workers=5, round=count).still
        so_far = [message for message in network.messages if message.round < count]
        for worker in range(5):
            sent = sum(message.size_bytes for message in so_far if message.source == worker)
            got = sum(message.size_bytes for message in so_far if message.target == worker)
            assert view.rows[worker][1:3] == [f"{sent:,}", f"{got:,}"]
    assert [row[1] for row in view.rows] == [f"{network.sent_bytes(worker):,}" for worker in range(5)]


@pytest.mark.parametrize("p, m", [(2, 2), (3, 12), (4, 8), (6, 6)])
def test_a_bubble_is_the_formula_s_and_what_is_held_the_schedule_s(p, m):
    plain, v = (p - 1) / (m + p - 1), pipeline_view.CHUNKS
    expected = {
        "naive": ((p - 1) / p, [1] * p),
        "GPipe": (plain, [m] * p),
        "1F1B": (plain, [min(m, p - stage) for stage in range(p)]),
        "interleaved": (
            (p - 1) / (v * m + p - 1),
            [held / v for held in pipeline.interleaved(p, m, v).timeline().peak_in_flight],
        ),
    }
    for name, (bubble, held) in expected.items():
        view = views.pipeline(schedule=name, stages=p, micro_batches=m).still
        assert column(view, "idle") == [f"{bubble:.1%}"] * p
        assert column(view, "micro-batches held") == [f"{count:g}" for count in held]


@pytest.mark.parametrize("name", pipeline_view.MAKERS)
def test_the_formula_named_in_a_caption_is_the_bubble_drawn(name):
    for p, m in ((2, 4), (3, 6), (4, 8), (6, 12)):
        drawn = pipeline_view.MAKERS[name](p, m).timeline().bubble
        assert math.isclose(float(pipeline_view.bubble(name, p, m)), drawn)


def test_the_memory_bar_is_the_planner_s_prediction():
    layout = planner.Layout(data=8, zero=3, precision="bfloat16_master")
    planned = planner.predict(
        models_by_numbers.MODELS["llama2-7b"], planner.Cluster(planner.find_chip("h100-80gb"), 8), layout, 8 * 16
    )
    view = views.memory(zero=3).still
    gib = dict(zip(column(view, ""), column(view, "GiB")))
    for kind, size in planned.memory.kinds.items():
        assert gib[kind] == f"{size / 2**30:,.2f}"
    assert gib["in all"] == f"{planned.memory.total / 2**30:,.2f}" and gib["the device has"] == "79.60"
    assert planned.fits and ": fits" in view.caption and "does not fit" in views.memory(zero=0).still.caption


@pytest.mark.parametrize(
    "changed", [{}, {"zero": 3}, {"tensor": 8, "pipeline": 4, "model": "llama2-70b", "recompute": "full"}]
)
def test_the_memory_view_names_the_command_that_says_the_same(changed, capsys):
    explorer = views.memory(**changed)
    answer = json.loads(terminal(explorer.still.command + " --json", capsys))
    planned = memory_view.prediction(**explorer.start)
    assert answer["memory_bytes"]["total"] == planned.memory.total and answer["verdict"] in explorer.still.caption


def terminal(line, capsys):
    parser = argparse.ArgumentParser()
    plan_command.add_arguments(parser)
    program, subcommand, *arguments = line.split()
    assert (program, subcommand) == ("course", "plan")
    assert plan_command.plan(parser.parse_args(arguments)) in (0, 1)
    return capsys.readouterr().out


def test_a_number_becomes_what_the_format_keeps():
    for value in (1e-46, 3e-8, 0.1, 1.0, 300.0, 70_000.0, 1e39):
        view = views.formats(value=value).still
        for name, kept in zip(column(view, ""), column(view, "becomes")):
            assert kept == f"{float(precision.find(name).round(value)):.6g}"
    outcomes = {name: formats_view.outcome(precision.find(name), 70_000.0) for name in formats_view.FORMATS}
    assert outcomes["float16"] == "overflow to infinity" and outcomes["float8_e4m3fn"] == "overflow to NaN"
    assert outcomes["float32"] == "exact" and outcomes["bfloat16"] == "rounded"
    assert formats_view.outcome(precision.find("float16"), 2e-8) == "underflow to 0"
    assert formats_view.outcome(precision.find("float16"), 1e-7) == "subnormal, rounded"


@pytest.mark.parametrize("name", formats_view.FORMATS)
def test_the_spacing_is_epsilon_at_1_and_the_smallest_number_at_0(name):
    one = precision.find(name)
    assert formats_view.spacing(one, 1.0) == one.epsilon
    assert formats_view.spacing(one, one.smallest_subnormal) == one.smallest_subnormal


def test_a_stale_descent_is_lesson_04_s():
    """W equal workers have staleness W - 1: the lesson's own cell, run here."""
    notebook = nbformat.read(LESSONS / "04_parameter_server.ipynb", as_version=4)
    source = next(cell.source for cell in notebook.cells if cell.source.startswith("def descend("))
    lesson = {}
    exec("import heapq\n" + source.split("\n\n\n")[0], lesson)
    for workers in range(1, 6):
        for rate in (0.1, 0.9, 1.8):
            _, weights = lesson["descend"]([1] * workers, rate, 30)
            np.testing.assert_allclose(staleness_view.descend(workers - 1, rate, 30)[1:], weights, rtol=1e-12)


@pytest.mark.parametrize("staleness", range(9))
def test_the_verdict_is_the_longest_root_s(staleness):
    """z^(s + 1) - z^s + rate: lengths above 1 grow, and a leading pair that is not real oscillates."""
    for rate in np.geomspace(0.02, 2.5, 60):
        roots = np.roots([1, -1, *[0] * (staleness - 1), rate] if staleness else [1, rate - 1])
        longest = max(roots, key=abs)
        wavers = abs(longest.imag) > 1e-6 or longest.real < 0
        expected = (
            "diverges" if abs(longest) > 1 else "converges, oscillating" if wavers else "converges without oscillating"
        )
        assert staleness_view.verdict(staleness, rate) == expected, rate
    assert staleness_view.verdict(staleness, staleness_view.limit(staleness)) == "neither converges nor diverges"
    assert staleness_view.verdict(staleness, staleness_view.smooth(staleness)) == "converges without oscillating"


def test_every_path_ends_where_lesson_10_s_table_leads():
    notebook = nbformat.read(LESSONS / "10_choosing_a_strategy.ipynb", as_version=4)
    table = next(cell.source for cell in notebook.cells if "| ask, in this order |" in cell.source)
    lines = {int(line.split(".")[0].strip("| ")): line for line in table.splitlines() if line[:3].strip("| ").isdigit()}
    for values in states(views.strategy(), 400):
        steps = strategy_view.choose(**values)
        assert steps and len(set(steps)) == len(steps)
        for step in steps:
            for lesson in step.lessons:
                assert f"[{lesson}](" in lines[step.line], step


def test_the_chooser_knows_the_cases_that_the_lessons_teach():
    def lessons(**answers):
        return [step.lessons for step in strategy_view.choose(**{**views.strategy().start, **answers})]

    assert lessons() == [("02",)] and lessons(machines="several") == [("02", "03")]
    assert lessons(fits=strategy_view.ACTIVATIONS) == [("08", "09"), ("02",)]
    assert lessons(fits=strategy_view.STATES, machines="several") == [("07",), ("07",), ("06",)]
    assert lessons(tables=strategy_view.TABLES) == lessons(workers=strategy_view.COME_AND_GO) == [("04",)]
    assert lessons(device="TPUs")[-1] == ("05",)
    assert ("04",) not in lessons(framework=strategy_view.JAX, workers=strategy_view.COME_AND_GO)


def test_a_path_is_the_lessons_of_its_steps_each_once():
    answers = {
        **views.strategy().start,
        "fits": strategy_view.STATES,
        "machines": "several",
        "framework": strategy_view.JAX,
    }
    assert strategy_view.tree(**{**answers, "workers": strategy_view.COME_AND_GO}) == "07 → 06 → 03"
    assert strategy_view.tree(**{**answers, "fits": strategy_view.YES}) == "02 and 03"


def test_every_planner_call_that_the_chooser_names_runs(capsys):
    named = {views.strategy().view(**values).command for values in states(views.strategy(), 60)} - {""}
    assert len(named) > 8
    for line in named:
        terminal(line, capsys)


def test_the_recorded_run_lost_what_came_after_its_last_save_and_repeated_it_to_the_same_losses():
    record = recovery_view.recorded()
    first, second = ({}, {})
    for task, attempt, step, loss in record["reports"]:
        (second if attempt else first)[task, step] = loss
    begun = min(step for _, step in second)
    assert begun % record["save_every"] == 1 and max(step for _, step in second) == 44
    twice = first.keys() & second.keys()
    assert twice and all(step >= begun for _, step in twice)
    for key in twice:
        assert math.isclose(first[key], second[key], rel_tol=1e-5)
    view = views.recovery(reports=10**6).still
    assert f"Done twice so far: {len(twice)} steps" in view.caption
    assert sum(int(row[3]) for row in view.rows) == len(twice)
    assert "what they would lose now" in views.recovery(reports=4).still.caption


def test_zero_s_stages_are_the_paper_s_and_accumulation_divides_activations_alone():
    """Rajbhandari and others (2020): 120, 31.4, 16.6 and 1.9 GB of 7.5 billion parameters on 64 devices."""
    view = views.zero_stages(parameters=7.5e9, devices=64, activations=0.1, examples=1).still
    assert [round(float(row[-1]), 1) for row in view.rows] == [120.0, 31.4, 16.6, 1.9]
    one, eight = (views.zero_stages(activations=100.0, examples=32, passes=passes).still for passes in (1, 8))
    assert [float(row[4]) for row in one.rows] == [3.2] * 4 and [float(row[4]) for row in eight.rows] == [0.4] * 4
    assert [row[1:4] for row in one.rows] == [row[1:4] for row in eight.rows]
