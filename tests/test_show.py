"""Figures: a picture in light and in dark, with words that carry its finding, and nothing but the numbers it was given.

Each schematic is held against numbers that it did not compute: a ledger, a schedule, a count by hand.
"""

import itertools
import math
import re
from collections import Counter
from html import unescape
from types import SimpleNamespace

import drawn_figures
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.text import Annotation, Text

from course_lib import collectives, pipeline, show
from course_lib.profiler import Event
from course_lib.show import board, charts
from course_lib.show import figure as figures
from course_lib.views import strategy_view

LEDGER = collectives.ring_all_reduce([np.ones(8, "float32")] * 4)[1]
CAPTION = 'Four are "slower" & cost > 2.'
BITS = {"float32": (8, 23), "bfloat16": (8, 7), "float16": (5, 10), "float8_e4m3fn": (4, 3)}
# two workers, one killed after step 13 and one after 12; saved after 10 and 20
REPORTS = {
    "worker 0": [(0, step) for step in range(1, 14)] + [(1, step) for step in range(11, 23)],
    "worker 1": [(0, step) for step in range(1, 13)] + [(1, step) for step in range(11, 23)],
}
# worker, time of the update, versions since it read: by hand, from paces of 1 and 3
UPDATES = [(0, 1, 0), (0, 2, 0), (0, 3, 0), (1, 3, 3), (0, 4, 1), (0, 5, 0), (0, 6, 0), (1, 6, 3)]
HELD = {"before": [[{w} for _ in range(4)] for w in range(4)]}
HELD["round 1"] = [[{w, (w - 1) % 4} if chunk == (w - 1) % 4 else {w} for chunk in range(4)] for w in range(4)]
PAIRED = {"worker 0": {8: "[9610], [1]", 9: "[9610], [1]", 10: "[9610], [1]"}, "worker 1": {8: "[9610], [1]", 9: "[5]"}}
FOUR = [f"CPU:{number}" for number in range(4)]


def prediction(**memory):
    kinds = {"weights": 4 * 2**30, "gradients": 2**30, "optimizer": 0, "activations": 2**30, **memory}
    return SimpleNamespace(
        memory=SimpleNamespace(kinds=kinds, total=sum(kinds.values())),
        step=SimpleNamespace(kinds={"compute": 2.0, "data": 0.5}, total=2.5),
        cluster=SimpleNamespace(chip=SimpleNamespace(memory_bytes=8 * 2**30)),
        verdict="fits",
    )


def events(starts):
    return [Event(name, "/host", "main", at, 1.0) for at, name in zip(starts, itertools.cycle(("input", "compute")))]


DRAWN = {
    "bars": lambda: show.bars({"one device": 1.0, "four": 2.5}, "ratio", CAPTION, reference={"ideal": 1.0}),
    "lines": lambda: show.lines({"a": ([1, 2], [3, 4])}, "bytes", "ms", CAPTION, log="xy", marks={"killed": 1.5}),
    "images": lambda: show.images(np.zeros((3, 8, 8, 1)), ["0", "1", "2"], CAPTION),
    "number_lines": lambda: show.number_lines({"float16": [0.25, 1, 4]}, "value", CAPTION, log=True),
    "stack": lambda: show.stack({"weights": 2, "gradients": 3}, "GiB", 4, CAPTION),
    "stacks": lambda: show.stacks({"one": {"weights": 2, "gradients": 3}}, "GiB", CAPTION),
    "plans": lambda: show.plans({"data 8, tensor 2, micro-batch 1, bfloat16_master": prediction()}, CAPTION),
    "messages": lambda: show.messages({"ring": LEDGER}, CAPTION),
    "timelines": lambda: show.timelines({"1F1B": pipeline.one_forward_one_backward(2, 4).timeline()}, CAPTION),
    "marks": lambda: show.marks({"slow": events([0, 1, 3, 4])}, ("input", "compute"), CAPTION),
    "paired_calls": lambda: show.paired_calls(PAIRED, CAPTION),
    "restarts": lambda: show.restarts(REPORTS, [10, 20], CAPTION),
    "stale_updates": lambda: show.stale_updates(UPDATES, CAPTION),
    "accumulation": lambda: show.accumulation({"one pass": [64], "four": [16] * 4}, CAPTION),
    "ring": lambda: show.ring(HELD, CAPTION),
    "mesh": lambda: show.mesh([["a", "b"], ["c", "d"]], ["data:\n8 B", "model: 2 B"], CAPTION),
    "tiles": lambda: show.tiles({"120 units": (64, 120), "136 units": (64, 136)}, (8, 128), CAPTION),
    "column_row_pair": lambda: show.column_row_pair([["up", "down"]] * 4, {"f": "copy", "g": "sum"}, CAPTION),
    "bit_layouts": lambda: show.bit_layouts(BITS, CAPTION),
    "logical_devices": lambda: show.logical_devices("one CPU", dict.fromkeys(FOUR, "[0. 5.]\n[1.]\n[7.]"), CAPTION),
    "replica_step": lambda: show.replica_step(dict.fromkeys(FOUR, 16), dict.fromkeys(FOUR, 35_914), CAPTION),
    "tasks": lambda: show.tasks(
        {"chief": ["schedules"], "worker": ["computes"] * 2, "ps": ["38,440 B"]},
        [("chief 0", "worker 0", "steps"), ("worker 0", "ps 0", "gradients"), ("ps 0", "worker 0", "weights")],
        CAPTION,
    ),
    "stages": lambda: show.stages({"CPU:0": ["forward: 1"], "CPU:1": ["forward: 1"]}, [(0, 1, "activations")], CAPTION),
    "flow": lambda: show.flow([("read", "in order"), ("train", "40 epochs"), ("save", "fifth")], CAPTION, columns=2),
    "chip": lambda: show.chip(dict.fromkeys(("chip", "memory", "read", "multipliers", "links"), "819 GB/s"), CAPTION),
    "roofline": lambda: show.roofline({"float32": (1e9, 1e8), "bfloat16": (1e12, 1e8)}, 200e12, 800e9, CAPTION),
    "path": lambda: show.path([("Does it fit?", "no")], ["cut it (07)"], CAPTION),
    "tree": lambda: show.tree(strategy_view.tree(framework="TensorFlow", device="GPUs or CPUs"), CAPTION),
}


def on_a_board():
    drawing = board.Board(20)
    drawing.box(1, 1, 8, 3, "plain")
    drawing.box(11, 1, 8, 3, "filled", figures.COLOURS[1], 0.5, size=7)
    drawing.box(21, 1, 8, 3)
    drawing.cell(1, 6, 4, 2, figures.COLOURS[2])
    drawing.cell(7, 6, 4, 2, figures.COLOURS[2], 0.3, "///")
    drawing.line([(1, 10), (9, 11)])
    drawing.arrow((1, 13), (9, 13))
    drawing.arrow((11, 13), (19, 13), figures.COLOURS[3], both=True, width=2)
    drawing.text(5, 16, "words")
    drawing.text(15, 16, "more", 7, "left", "top", figures.COLOURS[4], rotation=90)
    return drawing.figure(CAPTION)


def rising(count, by=1.0):
    return [by * place for place in range(1, count + 1)], list(range(count))


# What the figures above do not ask for.
ALSO_DRAWN = {
    "a board": on_a_board,
    "every meaning": lambda: show.number_lines(dict.fromkeys(charts.MEANINGS, [1, 2]), "x", CAPTION),
    "a part that is 0": lambda: show.stacks({"a": {"x": 0, "y": 1}, "b": {"x": 0, "y": 0}}, "GiB", CAPTION),
    "small and large numbers": lambda: show.bars({"a": 0.001234, "b": 12345.6, "c": 9.96}, "ms", CAPTION, digits=2),
    "many whole numbers": lambda: show.lines({"a": rising(9), "b": rising(30)}, "x", "y", CAPTION),
    "many numbers": lambda: show.lines({"a": rising(9, 0.3)}, "x", "y", CAPTION),
    "few numbers": lambda: show.lines({"a": rising(8, 0.12345678)}, "x", "y", CAPTION),
    "many numbers on a log axis": lambda: show.lines({"a": rising(9, 10)}, "x", "y", CAPTION, log="x"),
    "many powers of two": lambda: show.number_lines({"a": 2.0 ** np.arange(-30, 31)}, "x", CAPTION, log=True),
    "one power of two": lambda: show.number_lines({"a": [4.0]}, "x", CAPTION, log=True),
    "three ledgers": lambda: show.messages(dict.fromkeys("abc", LEDGER), CAPTION),
    "three schedules": lambda: show.timelines(
        {name: pipeline.interleaved(2, 4, 2).timeline() for name in "abc"}, CAPTION
    ),
    "three plans": lambda: show.plans({name: prediction() for name in "abc"}),
}


@pytest.fixture(params=DRAWN)
def drawn(request):
    return DRAWN[request.param]()


def texts(figure) -> list[str]:
    return [one.get_text() for axes in figure.canvas.axes for one in axes.texts]


def cells(figure, colour=None) -> list[Rectangle]:
    """A board's blocks, all or those of one colour."""
    found = [patch for patch in figure.canvas.axes[0].patches if type(patch) is Rectangle]
    return [one for one in found if colour is None or to_hex(one.get_facecolor()) == colour.lower()]


def shown(axes) -> list[Text]:
    """The words that a reader sees: those of the drawing, its titles and legend, and of the ticks within its limits."""
    legend = axes.get_legend()
    found = [*axes.texts, axes.title, axes._left_title, *(legend.get_texts() if legend else ())]
    for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
        low, high = sorted(axis.get_view_interval())
        found.append(axis.label)
        found += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return found


def arrows(figure) -> int:
    return sum(isinstance(patch, FancyArrowPatch) for patch in figure.canvas.axes[0].patches)


# All figures


def test_every_kind_of_figure_is_tried_here():
    functions = {name for name in show.__all__ if name not in ("Figure", "source")}
    assert functions - {"shards"} == DRAWN.keys(), "shards: tests/test_sharding.py, on JAX's devices"


def test_a_figure_is_a_picture_with_its_finding_in_words(drawn):
    bundle = drawn._repr_mimebundle_()
    assert bundle.keys() == {"text/plain", "text/html"} and bundle["text/plain"] == f"Figure: {CAPTION}"
    alt, words = (
        re.search('<img alt="(.*?)"', bundle["text/html"]),
        re.search("<figcaption>(.*?)<", bundle["text/html"]),
    )
    assert unescape(alt[1]) == unescape(words[1]) == CAPTION
    assert drawn._repr_mimebundle_() == bundle, "showing twice draws the same"


@pytest.mark.parametrize("name", DRAWN | ALSO_DRAWN)
def test_nothing_in_a_picture_has_moved_or_has_another_colour(name):
    figure = (DRAWN | ALSO_DRAWN)[name]()
    lines = list(drawn_figures.lines(figure))
    assert drawn_figures.digest(lines) == drawn_figures.stored()[name], "\n".join(lines)


def test_a_picture_loads_nothing_and_runs_nothing(drawn):
    links = re.findall(r'(?:href|src)="([^"]*)"', drawn.svg) + re.findall(r"url\((.*?)\)", drawn.svg)
    assert all(link.startswith(("#", "data:image/png")) for link in links)
    assert "<script" not in drawn.svg and drawn.svg.startswith("<svg ") and drawn.svg.rstrip().endswith("</svg>")


def test_what_is_black_or_white_follows_light_and_dark(drawn):
    drawing = drawn.svg.split("</style>", 1)[1]
    for fixed in (figures.INK, figures.PAPER, figures.FAINT, "#000000", "#ffffff"):
        assert fixed not in drawing
    assert "prefers-color-scheme: dark" in drawn.svg.split("</style>", 1)[0]


def test_letters_are_legible_on_a_phone_and_none_lies_over_another(drawn):
    """A letter of 7 points is 7 pixels high where the page is 360 pixels wide."""
    canvas = FigureCanvasAgg(drawn.canvas)
    canvas.draw()
    renderer, (wide, high) = canvas.get_renderer(), drawn.canvas.bbox.size
    words = [one for axes in drawn.canvas.axes for one in shown(axes) if one.get_text().strip()]
    assert words and all(one.get_fontsize() >= 7 for one in words)
    boxes = [(one.get_text(), one.get_window_extent(renderer)) for one in words]
    for text, box in boxes:
        assert min(box.x0, box.y0) >= -1 and box.x1 <= wide + 1 and box.y1 <= high + 1, f"{text!r} is cut off"
    for (one, box), (other, second) in itertools.combinations(boxes, 2):
        across = min(box.x1, second.x1) - max(box.x0, second.x0)
        down = min(box.y1, second.y1) - max(box.y0, second.y0)
        assert across < 2 or down < 2, f"{one!r} lies over {other!r}"


def test_one_name_has_one_colour_in_every_chart():
    first = show.stacks({"a": {"weights": 1, "optimizer": 2}}, "GiB", "x").canvas.axes[0]
    other = show.stacks({"a": {"optimizer": 2, "activations": 1, "weights": 1}}, "GiB", "x").canvas.axes[0]

    def colours(axes):
        return {c.get_label(): to_hex(c.patches[0].get_facecolor()) for c in axes.containers}

    assert colours(first).items() <= colours(other).items() and len(set(colours(other).values())) == 3
    assert colours(other)["weights"] == figures.COLOURS[0].lower()


def test_numbers_have_the_digits_they_are_good_for_and_counts_are_whole():
    labels = texts(show.bars({"a": 1234.5, "b": 0.12345}, "ms", "x", digits=2))
    assert labels == ["1,234", "0.12"] or labels == ["1,200", "0.12"]
    counts = show.bars({"a": 3.0, "b": 1200.0}, "images", "x")
    assert texts(counts) == ["3", "1,200"]
    assert all(float(tick).is_integer() for tick in counts.canvas.axes[0].get_xticks())
    measured = show.lines({"a": ([1024, 16384], [1, 2])}, "bytes", "ms", "x", log="xy").canvas.axes[0]
    FigureCanvasAgg(measured.figure).draw()
    assert [tick.get_text() for tick in measured.get_xticklabels()] == ["1,024", "16,384"]


# Schematics against numbers that they did not compute


def test_arrows_of_a_ledger_carry_its_bytes():
    figure = show.messages({"ring": LEDGER}, "x")
    sent = Counter()
    for arrow in figure.canvas.axes[0].texts:
        assert isinstance(arrow, Annotation)
        (source, top), (_, bottom) = arrow.xyann, arrow.xy
        sent[source] += bottom - top
    assert sent == dict.fromkeys(range(4), 2 * 3 / 4 * 32)  # 2 (N - 1) / N of 8 numbers of 4 bytes


def test_bars_of_a_schedule_are_as_long_as_the_work():
    figure = show.timelines({"GPipe": pipeline.gpipe(2, 4).timeline()}, "x")
    (axes,) = figure.canvas.axes
    for stage in (0, 1):
        mine = [a.get_width() for a in axes.patches if math.isclose(a.get_y(), stage - 0.45)]
        assert sorted(mine) == [1] * 4 + [2] * 4  # four forwards of one unit, four backwards of two
    assert axes.get_title("left") == "GPipe: 20% idle"  # 1 / (4 + 1)
    assert [text for text in texts(figure) if text.startswith("holds")] == ["holds 4", "holds 4"]


def test_marks_lie_where_the_profile_has_them():
    figure = show.marks({"slow": events([0, 1, 3, 4])}, ("input", "compute"), "x")
    _, _, *marks = cells(figure)  # after the legend's
    starts = [(one.get_x() - marks[0].get_x()) / marks[0].get_width() for one in marks]
    np.testing.assert_allclose(starts, [0, 1, 3, 4], atol=1e-9)
    assert [to_hex(one.get_facecolor()) for one in marks[:2]] == [
        to_hex(one.get_facecolor()) for one in cells(figure)[:2]
    ]


def test_steps_done_twice_are_those_that_were_reported_twice():
    figure = show.restarts(REPORTS, [10, 20], "x")
    twice = sum(count - 1 for pairs in REPORTS.values() for count in Counter(step for _, step in pairs).values())
    hatched = [one for one in cells(figure) if one.get_hatch()]
    assert len(hatched) - 1 == twice == 3 + 2  # one is the legend's
    assert len(cells(figure)) - 3 == sum(map(len, REPORTS.values()))
    assert texts(figure).count("10") == texts(figure).count("20") == 2


def test_staleness_is_drawn_as_counted():
    figure = show.stale_updates(UPDATES, "x")
    assert arrows(figure) == len(cells(figure)) == len(UPDATES)
    lowest = max(one.get_position()[1] for one in figure.canvas.axes[0].texts)
    row = [
        one for one in figure.canvas.axes[0].texts if one.get_position()[1] == lowest and one.get_text() != "staleness"
    ]
    drawn = [int(one.get_text()) for one in sorted(row, key=lambda one: one.get_position()[0])]
    assert drawn == [0, 0, 0, 3, 1, 0, 0, 3]
    unit = cells(figure)[0].get_width()
    assert [round(one.get_width() / unit) for one in cells(figure)] == [1, 1, 1, 3, 1, 1, 1, 3]


def test_calls_that_meet_are_joined_where_they_are_alike():
    figure = show.paired_calls(PAIRED, "x")
    (joined,) = figure.canvas.axes[0].lines
    place = {text.get_text(): text.get_position()[0] for text in figure.canvas.axes[0].texts}
    assert set(joined.get_xdata()) == {place["call 8"]} and texts(figure).count("\u2260") == 2
    assert sum(isinstance(patch, FancyBboxPatch) for patch in figure.canvas.axes[0].patches) == 3 + 2


def test_held_rows_are_as_high_as_they_are_many():
    figure = show.accumulation({"one pass": [64], "four": [16] * 4}, "x")
    peaks = [np.ptp(line.get_ydata()) for line in figure.canvas.axes[0].lines]
    np.testing.assert_allclose(np.array(peaks) / peaks[0], [1, *[0.25] * 4])
    ends = [one.get_x() for one in cells(figure, figures.COLOURS[2])][1:]  # both updates, without the legend
    assert math.isclose(*ends)  # equally long


def test_a_chunk_has_a_stripe_for_each_whose_numbers_are_in_it():
    figure = show.ring(HELD, "x")
    whole = [one for one in cells(figure) if one.get_facecolor()[3] == 1]
    assert len(cells(figure)) == 2 * 4 * 4 * 4 and len(whole) == 16 + (16 + 4)
    frames = len(figure.canvas.axes[0].lines) / 2
    assert frames == 4 and arrows(figure) == 4  # what is new, and who sent it


def test_tiles_are_those_that_the_matrix_needs():
    figure = show.tiles({"120 units": (64, 120), "136 units": (64, 136)}, (8, 128), "x")
    padded, numbers, padded_more, more = cells(figure)
    assert math.isclose(numbers.get_width() / padded.get_width(), 120 / 128)
    assert math.isclose(more.get_width() / padded_more.get_width(), 136 / 256)
    assert texts(figure) == ["120 units\n94% full", "136 units\n53% full"]


def test_a_number_has_as_many_bits_as_its_format():
    figure = show.bit_layouts(BITS, "x")
    rows = Counter(one.get_y() for one in cells(figure)[3:])
    assert list(rows.values()) == [32, 16, 16, 8]
    assert texts(figure)[-1] == "1 + 4 + 3"


def test_bars_of_parts_are_as_long_as_their_sum():
    axes = show.stacks({"stage 0": {"weights": 4, "optimizer": 8}, "stage 1": {"weights": 4, "optimizer": 1}}, "B", "x")
    (axes,) = axes.canvas.axes
    ends = {
        one.get_y(): max(p.get_x() + p.get_width() for p in axes.patches if p.get_y() == one.get_y())
        for one in axes.patches
    }
    assert list(ends.values()) == [12, 5]
    assert [one.get_text().strip() for one in axes.texts] == ["12", "5"]


def test_a_program_stands_on_the_roof():
    figure = show.roofline({"slow": (1e9, 1e8), "fast": (1e12, 1e8)}, 200e12, 800e9, "x")
    _, slow, fast = figure.canvas.axes[0].lines
    assert (slow.get_xdata()[0], slow.get_ydata()[0]) == (10, pytest.approx(8))  # 10 flops a byte, at 800 GB/s
    assert (fast.get_xdata()[0], fast.get_ydata()[0]) == (10_000, 200)
    assert "250 flops a byte" in texts(figure)


def test_each_task_and_each_link_is_drawn_once():
    links = [("worker 0", "ps 0", "gradients"), ("ps 0", "worker 0", "weights"), ("worker 1", "ps 0", "gradients")]
    figure = show.tasks({"worker": ["a", "b"], "ps": ["c"]}, links, "x")
    assert arrows(figure) == 2, "there and back is one arrow"
    assert sum(isinstance(patch, FancyBboxPatch) for patch in figure.canvas.axes[0].patches) == 3
    assert {"gradients ↓\nweights ↑", "gradients", "worker 0\na", "worker 1\nb", "ps 0\nc"} == set(texts(figure))
    side_by_side = show.tasks(
        {"worker": ["a", "b"]}, [("worker 0", "worker 1", "x"), ("worker 1", "worker 0", "y")], "x"
    )
    assert arrows(side_by_side) == 2


def test_the_tree_leads_where_the_answers_do():
    """Each set of answers, followed from the top, ends at the lessons that `choose` names for it."""
    questions = {choice.label: name for name, choice in strategy_view.QUESTIONS.items()}
    tree = strategy_view.tree()
    for answers in itertools.product(*(choice.options for choice in strategy_view.QUESTIONS.values())):
        given, below = dict(zip(strategy_view.QUESTIONS, answers)), tree
        while not isinstance(below, str):
            ((label, branches),) = below.items()
            below = branches[given[questions[label]]]
        lessons = [" and ".join(step.lessons) for step in strategy_view.choose(**given)]
        assert below.split(" → ") == list(dict.fromkeys(lessons))


# The code of a function


def test_source_is_the_code_without_its_docstring():
    text = show.source(collectives.ring_all_reduce)
    assert text.startswith("def ring_all_reduce(") and "return [np.concatenate" in text
    assert '"""' not in text and "Reduce-scatter around" not in text


def without_a_docstring():
    values = [1, 2]

    return values


def one_line():
    """Says one."""

    return 1


def a_call_first():
    print("not a docstring")


def a_number_first():
    1  # noqa: B018


def test_source_leaves_out_the_docstring_alone():
    assert show.source(without_a_docstring) == "def without_a_docstring():\n    values = [1, 2]\n\n    return values"
    assert show.source(one_line) == "def one_line():\n    return 1"
    assert show.source(a_call_first) == 'def a_call_first():\n    print("not a docstring")'
    assert show.source(a_number_first) == "def a_number_first():\n    1  # noqa: B018"
