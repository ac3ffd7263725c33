"""The grading core on tiny questions of its own: every kind of answer and of file."""

import dataclasses
import json
import logging
import multiprocessing
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from installed import need

from course_lib import progress
from course_lib.errors import CourseError
from course_lib.exercises import (
    CheckFailed,
    Exercise,
    Mistake,
    Question,
    Target,
    journal,
    judges,
    run_notebook,
    time_limit,
)
from course_lib.exercises.ask import NotPlain, ask, plain
from course_lib.exercises.check import VERDICT_MIME
from course_lib.exercises.judge import judge, same
from course_lib.exercises.verdict import Verdict
from course_lib.staff import new_exercises

ROOT = Path(__file__).parents[1]


def draw(seed):
    return np.random.default_rng(seed).normal(size=5) + 3


def probe_double(names, seed):
    return {"doubled": names["double"](draw(seed))}


def is_double(answers, seed):
    got, wanted = answers["doubled"], 2 * draw(seed)
    return np.allclose(got, wanted) or f"yours is {np.mean(got / wanted):.2f} times the double"


DOUBLE = Question(
    "q1",
    "Double it",
    ("double",),
    probe_double,
    targets=(Target("twice the input", is_double),),
    mistakes=(
        Mistake("square", "You square.", "Look at the operator.", lambda x: x**2),
        Mistake("crash", "You divide by zero.", "Look at the denominator.", lambda x: [1 / 0 for _ in x]),
    ),
    points=2,
)


def verdict_on(double, seed=0):
    names = {"double": double} if double is not None else {}
    return judge(DOUBLE, ask(DOUBLE.probe, DOUBLE.asks_for, names, seed), seed)


def raised(call, *arguments):
    with pytest.raises(CourseError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def check(exercise, question="q1"):
    """The failed check's line; None when the answer is right."""
    try:
        return exercise(question)
    except CheckFailed as failed:
        return str(failed)


def in_notebook(source: str) -> dict:
    """Names as a notebook cell would define them, so that errors have a line of their own."""
    names: dict = {}
    exec(source, names)
    return names


# Asking: what the learner's code can do.


def test_right_answer_earns_the_points():
    verdict = verdict_on(lambda x: 2 * x)
    assert verdict.right and verdict.points == verdict.of == 2
    assert verdict.summary == "q1 is right: 2 of 2 points"


def test_wrong_answer_says_how_and_names_the_mistake():
    verdict = verdict_on(lambda x: x**2)
    assert not verdict.right and verdict.points == 0 and verdict.mistake == "square"
    assert "times the double" in verdict.message and verdict.hints == ("You square.", "Look at the operator.")


def test_unknown_mistake_earns_no_hint():
    verdict = verdict_on(lambda x: 5 * x)
    assert not verdict.right and verdict.mistake is None and verdict.hints == ()


@pytest.mark.parametrize(
    "source",
    [
        "def double(x): return ...",
        "double = ...",
        "double = None",
        "def double(x): raise NotImplementedError",
        "def double(x): raise NotImplementedError('q1 is blank: write your answer here')",
    ],
)
def test_blank_is_called_blank(source):
    verdict = judge(DOUBLE, ask(DOUBLE.probe, DOUBLE.asks_for, in_notebook(source), 0), 0)
    assert verdict.summary == "q1 is still blank" and not verdict.right


@pytest.mark.parametrize("source", ["def double(x): pass", "def double(x): y = 2 * x"])
def test_an_answer_without_return_is_not_called_blank(source):
    verdict = judge(DOUBLE, ask(DOUBLE.probe, DOUBLE.asks_for, in_notebook(source), 0), 0)
    assert (
        verdict.summary == "q1 is not right yet: double returned None; does it end with a `return`?"
        and not verdict.right
    )


def test_an_answer_that_returns_elsewhere_is_shown_the_call_that_gave_none():
    source = "def double(x):\n    if x.mean() > 100:\n        return 2 * x"
    verdict = judge(DOUBLE, ask(DOUBLE.probe, DOUBLE.asks_for, in_notebook(source), 0), 0)
    given = "q1 is not right yet: double(an array of shape (5,)) returned None; return an answer in this case too"
    assert verdict.summary == given
    source = 'def double(x):\n    "Raises ValueError for what is empty"\n    return None if len(x) else 2 * x'
    verdict = judge(DOUBLE, ask(DOUBLE.probe, DOUBLE.asks_for, in_notebook(source), 0), 0)
    assert verdict.summary == given + ", or raise the ValueError of its docstring"


@pytest.mark.parametrize(
    "source",
    [
        "def double(x):\n    while True:\n        pass",
        "def double(x):\n    while True:\n        try: len(x)\n        except Exception: pass",
        "import time\ndef double(x):\n    time.sleep(1000)",
        "import tensorflow as tf\ndef double(x):\n    for y in tf.data.Dataset.from_tensors(x).repeat():\n        pass",
    ],
)
def test_an_answer_that_never_ends_is_ended(source):
    if "tensorflow" in source:
        need("tensorflow")
    answers = ask(DOUBLE.probe, DOUBLE.asks_for, in_notebook(source), 0, seconds=0.5)
    line = judge(DOUBLE, answers, 0).summary
    assert line.startswith("q1 is not right yet: it had not ended after 0.5 s, in double, line ")
    assert line.endswith("; does a loop or a data set never end?")


def test_a_check_that_waits_in_a_framework_says_how_it_ends(capsys, monkeypatch):
    monkeypatch.setattr(time_limit, "STUCK_SECONDS", 0.0)
    monkeypatch.setattr(time_limit.signal, "setitimer", lambda *_: None)  # as where no bytecode runs
    said = threading.Event()
    monkeypatch.setattr("builtins.print", lambda text, file: said.set() if "restart the kernel" in text else None)
    with time_limit.time_limit(0.01):
        assert said.wait(60)


def test_an_answer_without_return_is_told_so_while_tensorflow_traces():
    tf = need("tensorflow")
    traced = in_notebook("def double(x): y = 2 * x")
    answers = ask(
        lambda names, seed: {"y": tf.function(lambda x: names["double"](x))(tf.constant(1.0)).numpy()},
        ("double",),
        traced,
        0,
    )
    assert answers["stopped"] == {"kind": "nothing", "line": "double returned None; does it end with a `return`?"}


def test_what_a_framework_has_not_implemented_is_no_blank():
    framework = in_notebook("def reduce(x): raise NotImplementedError('no such reduction')")
    summary = verdict_on(lambda x: framework["reduce"](x)).summary
    assert "no such reduction" in summary and "blank" not in summary


@pytest.mark.parametrize(
    "source",
    [
        "def f(e, b, drop): return [e, b, drop]",
        "def f(examples, batch, drop_last): return [examples, batch, drop_last]",
    ],
)
def test_parameters_may_have_other_names(source):
    names, last = in_notebook(source), {"drop_last": True}
    assert ask(lambda names, seed: {"got": names["f"](7, 2, **last)}, ("f",), names, 0) == {"got": [7, 2, True]}


@pytest.mark.parametrize("made", ["functools.partial(double)", "Callable()", "twice"])
def test_every_callable_of_the_learners_is_looked_at(made):
    """The last one after its last value as well."""
    source = "import functools\ndef double(x): return x\ndef twice(x):\n    yield x\n    seen.append('after')\n"
    source += f"class Callable:\n    def __call__(self, x): return x\ndouble = {made}"
    names, seen = in_notebook(source), []
    names["seen"] = seen
    ask(lambda names, seed: {"got": np.size(names["double"](1))}, ("double",), names, 0, look=seen.append)
    assert 1 in seen or made == "twice"
    if made == "twice":
        given = ask(
            lambda names, seed: {"got": list(names["double"](1))},
            ("double",),
            names,
            0,
            look=lambda it: seen.append(it) or it,
        )
        assert given == {"got": [1]} and seen[-2:] == ["after", None]


def test_missing_name_names_its_neighbours():
    answers = ask(
        DOUBLE.probe,
        DOUBLE.asks_for,
        {"doubel": len, "_double": len, "doubled": 3} | in_notebook("def doubel(): pass"),
        0,
    )
    line = judge(DOUBLE, answers, 0).summary
    assert "asks for double" in line and line.endswith("not run yet? Did you mean doubel?")


def test_exception_gives_the_learners_own_line_and_no_other():
    names = in_notebook("def helper(x):\n    return x.sum() / {}\n\ndef double(x):\n    y = 1\n    return helper(x)\n")
    line = judge(DOUBLE, ask(DOUBLE.probe, DOUBLE.asks_for, names, 0), 0).summary
    assert "TypeError: unsupported operand" in line and "in helper, line 2 of its cell" in line
    assert "\n" not in line and "course_lib" not in line


def test_exception_inside_a_traced_function_is_told_by_its_own_message():
    """TensorFlow prefixes the learner's stack, file names and all, to the message."""
    traced = (
        'in user code:\n\n    File "/tmp/x.py", line 3, in f  *\n        return g(x)\n\n    ValueError: shapes differ\n'
    )

    def double(x):
        raise ValueError(traced)

    answers = ask(DOUBLE.probe, DOUBLE.asks_for, {"double": double}, 0)
    assert answers["stopped"]["line"] == "double does not work as the docstring says (ValueError: shapes differ)"
    names = in_notebook("def double(x):\n    raise ValueError(traced)")
    names["traced"] = traced
    answers = ask(DOUBLE.probe, DOUBLE.asks_for, names, 0)
    assert answers["stopped"]["line"] == "ValueError: shapes differ, in f, line 3 of its cell: return g(x)"


@pytest.mark.parametrize("names", [{"double": lambda x: 1 / 0}, in_notebook("def double(x):\n    return 1 / 0\n")])
def test_raising_mistake_is_recognised(names):
    """In a notebook, too, where the error has a line of the learner's own."""
    verdict = judge(DOUBLE, ask(DOUBLE.probe, DOUBLE.asks_for, names, 0), 0)
    assert verdict.mistake == "crash" and "ZeroDivisionError: division by zero" in verdict.summary


def test_unreadable_answer_points_at_the_docstring():
    def probe(names, seed):
        return {"sizes": list(names["double"](1))}

    answers = ask(probe, ("double",), {"double": lambda x: 1.5}, 0)
    assert "double does not work as the docstring says (TypeError" in answers["stopped"]["line"]


class AlwaysEqual:
    def __eq__(self, other):
        return True


class EqualArray(np.ndarray):
    def __eq__(self, other):
        return np.ones(self.shape, bool)


@pytest.mark.parametrize(
    "value", [AlwaysEqual(), [AlwaysEqual()], {"a": {1}}, np.array([object()]), np.ones(3).view(EqualArray), {1: 2}]
)
def test_objects_never_reach_the_judge(value):
    with pytest.raises(NotPlain):
        plain({"x": value})
    assert "not plain" == ask(lambda names, seed: {"x": value}, (), {}, 0)["stopped"]["kind"]


def test_plain_values_pass():
    values = plain({"a": np.float32(1.5), "b": (1, "x", None, True), "c": np.arange(3)})
    assert type(values["a"]) is float and values["b"] == [1, "x", None, True] and values["c"].dtype == int


# Judging: pure, and safe on answers of any form.


def test_judge_needs_nothing_but_values():
    answers = {"doubled": 2 * draw(7)}
    assert judge(DOUBLE, answers, 7) == judge(DOUBLE, answers, 7) and judge(DOUBLE, answers, 7).right
    assert not judge(DOUBLE, answers, 8).right


@pytest.mark.parametrize(
    "answers", [{}, {"doubled": "text"}, {"doubled": None}, {"doubled": np.ones(3)}, {"doubled": [10**400]}]
)
def test_answers_of_another_form_are_wrong_not_fatal(answers):
    verdict = judge(DOUBLE, answers, 0)
    assert not verdict.right and "another form" in verdict.message


@pytest.mark.parametrize(
    "one, other, equal",
    [
        (1.0, 1.0 + 1e-9, True),
        (1.0, 1.1, False),
        ([1, 2], [1, 2, 3], False),
        (np.nan, np.nan, True),
        ("a", "a", True),
        ("1", 1, False),
        (None, 0, False),
        ({"a": 1}, {"b": 1}, False),
        ([], 0, False),
        (np.ones(3), np.ones((3, 1)), False),
        (np.array(["a"]), np.array(["a"]), True),
        (np.array([b"a"]), np.array([b"b"]), False),
        (10**4000, 10**4000, True),
        (10**4000, 1.0, False),
    ],
)
def test_same_compares_plain_values(one, other, equal):
    assert same(one, other) is equal is same(other, one)


def test_values_that_are_nested_too_deep_are_not_compared():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert not same(deep, [deep])
    assert not judge(DOUBLE, {"doubled": deep}, 0).right


@pytest.mark.parametrize(
    "stopped",
    [None, "text", [], {}, {"kind": 1}, {"kind": "raised", "line": ["x"]}, {"kind": "odd", "line": "x" * 10**7}],
)
def test_what_stopped_a_probe_may_have_any_form(stopped):
    """Right answers beside it count for nothing."""
    verdict = judge(DOUBLE, {"stopped": stopped, "doubled": 2 * draw(0)}, 0)
    assert not verdict.right and not verdict.targets and 0 < len(verdict.problem) < 1_000


@pytest.mark.parametrize("answers", [None, [], "text", 3])
def test_answers_that_are_no_dict_are_wrong(answers):
    assert "cannot be read" in judge(DOUBLE, answers, 0).problem


def test_detail_that_quotes_a_long_answer_is_cut():
    quoting = dataclasses.replace(DOUBLE, targets=(Target("t", lambda answers, seed: answers["doubled"]),))
    detail = judge(quoting, {"doubled": "x" * 10**7}, 0).targets[0].detail
    assert detail.startswith("xxx") and len(detail) < 400


def test_verdict_survives_json_and_is_escaped_in_html():
    verdict = verdict_on(lambda x: x**2)
    assert Verdict.from_dict(json.loads(json.dumps(verdict.as_dict()))) == verdict
    hostile = Verdict("q1", "t", False, 0, 1, problem="<script>")
    assert "<script>" not in hostile._repr_html_()


def test_mistake_must_stand_in_for_every_name():
    with pytest.raises(ValueError, match="must stand in for"):
        Question("q1", "t", ("a", "b"), probe_double, (), (Mistake("m", "", "", {"a": 1}),))


# The exercise: hints, progress, what a notebook shows.


def exercise(folder, name="demo"):
    return Exercise(name, (DOUBLE,), folder / journal.FILE)


def test_second_hint_follows_the_second_time(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(globals(), "double", lambda x: x**2)
    assert "not right yet" in check(exercise(tmp_path))
    assert "Where to look" not in capsys.readouterr().out
    check(exercise(tmp_path))  # a restarted kernel remembers the first time
    assert "Where to look: Look at the operator." in capsys.readouterr().out


def test_an_interrupt_and_a_blank_leave_one_line_and_are_not_counted(tmp_path, monkeypatch):
    def interrupted(x):
        raise KeyboardInterrupt

    monkeypatch.setitem(globals(), "double", interrupted)
    assert check(exercise(tmp_path)) == "q1 was interrupted; this check is not counted"
    monkeypatch.setitem(globals(), "double", ...)
    assert check(exercise(tmp_path)) == "q1 is still blank"
    monkeypatch.delitem(globals(), "double")
    assert "q1 has no answer yet" in check(exercise(tmp_path))
    assert journal.events(tmp_path / journal.FILE) == []


def test_a_checks_own_retracing_is_not_the_learners(tmp_path, monkeypatch, caplog):
    def warns(x):
        logging.getLogger("tensorflow").warning("5 out of the last 5 calls triggered tf.function retracing.")
        logging.getLogger("tensorflow").warning("Something else.")
        return 2 * x

    monkeypatch.setitem(globals(), "double", warns)
    assert check(exercise(tmp_path)) is None
    assert "Something else." in caplog.text and "retracing" not in caplog.text


def test_right_answer_is_kept_and_raises_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "double", lambda x: 2 * x)
    assert check(exercise(tmp_path)) is None
    monkeypatch.setitem(globals(), "double", lambda x: x)
    assert check(exercise(tmp_path)) is not None
    assert "2 of 2 points" in repr(exercise(tmp_path))


def test_unwritable_folder_loses_no_right_answer(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(globals(), "double", lambda x: 2 * x)
    gone = exercise(tmp_path / "gone")
    assert check(gone) is None and "could not be written" in capsys.readouterr().out
    assert "2 of 2 points" in repr(gone)


def test_unknown_question_and_exercise_are_named():
    assert "it has q1" in raised(Exercise("demo", (DOUBLE,), None), "q9")
    assert "00_start_here" in raised(Exercise, "99_nothing")


def test_each_check_draws_a_fresh_seed(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "double", lambda x: 2 * x)
    for _ in range(3):
        check(exercise(tmp_path))
    assert len({event["seed"] for event in journal.events(tmp_path / journal.FILE)}) == 3


# Progress: appended, torn, shared.

RIGHT = Verdict("q1", "t", True, 1, 1)


def _record_many(file):
    for seed in range(200):
        journal.record(file, "00_start_here", RIGHT, seed)


def test_two_writers_lose_nothing(tmp_path):
    file = tmp_path / journal.FILE
    writers = [multiprocessing.get_context("spawn").Process(target=_record_many, args=(file,)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(journal.events(file)) == 400


@pytest.mark.parametrize(
    "broken", [b"\x00\xff", b"{", b"[]", b"3", b'{"exercise": "00_start_here"', b'{"question": 1}']
)
def test_a_torn_line_costs_only_itself(tmp_path, broken):
    file = tmp_path / journal.FILE
    journal.record(file, "00_start_here", RIGHT, 1)
    with file.open("ab") as torn:
        torn.write(b"\n" + broken)
    journal.record(file, "00_start_here", RIGHT, 2)
    assert [event["seed"] for event in journal.events(file)] == [1, 2]


def test_read_counts_points_attempts_and_the_next_question(tmp_path):
    for verdict in (RIGHT, RIGHT, Verdict("q2", "t", False, 0, 1), Verdict("gone", "t", True, 1, 1)):
        journal.record(tmp_path / journal.FILE, "00_start_here", verdict, 0)
    first = progress.read(tmp_path).exercises[0]
    assert (first.points, first.of, first.attempts, first.next_open) == (1, 4, 4, "q2")
    assert re.search(r"00_start_here +1 of 4 +4  q2, q3, q4\n", str(progress.read(tmp_path)))
    assert json.dumps(progress.read(tmp_path).as_dict())


# Generation: deterministic bytes, and never over a learner's work.


def solution_file(folder, edit=lambda cells: None):
    """A small solution of exercise 00: an answer cell and a check cell per question."""
    cells = [_cell("markdown", "# Title\n\nÜber")]
    for question in judges.questions("00_start_here"):
        body = "    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION"
        cells.append(_cell("code", f"def {question.asks_for[0]}(*a):\n{body}", question.name))
        cells.append(_cell("code", f'check("{question.name}")', outputs=[{"output_type": "stream"}]))
    edit(cells)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "00_start_here.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def _cell(kind, source, tag=None, outputs=()):
    more = {"outputs": list(outputs), "execution_count": 3} if kind == "code" else {}
    return {"cell_type": kind, "id": "x", "metadata": {"tags": [tag] if tag else []}, "source": source, **more}


def test_generation_blanks_and_repeats_itself(tmp_path):
    solution_file(tmp_path / "s")
    assert "written" in str(new_exercises.generate(tmp_path / "s", tmp_path / "e")[0])
    content = (tmp_path / "e" / "00_start_here.ipynb").read_bytes()
    assert "up to date" in str(new_exercises.generate(tmp_path / "s", tmp_path / "e")[0])
    cells = json.loads(content)["cells"]
    assert cells[1]["source"][1] == '    raise NotImplementedError("q1 is blank: write your answer here")'
    assert b"SOLUTION" not in content and b"return 1" not in content
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells[1:])


def test_generation_rewrites_an_untouched_file_only(tmp_path):
    exercise_file = tmp_path / "e" / "00_start_here.ipynb"
    solution_file(tmp_path / "s")
    new_exercises.generate(tmp_path / "s", tmp_path / "e")
    untouched = exercise_file.read_text()
    solution_file(tmp_path / "s", edit=lambda cells: cells.insert(0, _cell("markdown", "New.")))
    assert "written" in str(new_exercises.generate(tmp_path / "s", tmp_path / "e")[0])
    edited = json.loads(untouched)
    edited["cells"][1]["source"] = ["def shard_sizes(): return 2"]
    ran = json.loads(untouched)
    ran["cells"][2]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "1"}]
    for mine in (json.dumps(edited), json.dumps(ran), "not JSON", "{}"):
        exercise_file.write_text(mine)
        assert "left alone" in str(new_exercises.generate(tmp_path / "s", tmp_path / "e")[0])
        assert exercise_file.read_text() == mine
    saved = json.loads(untouched)  # opened and saved by Jupyter without an edit
    saved["metadata"]["language_info"]["version"] = "3.12"
    exercise_file.write_text(json.dumps(saved))
    assert "written" in str(new_exercises.generate(tmp_path / "s", tmp_path / "e")[0])


def _swap(old, new):
    def edit(cells):
        cells[1]["source"] = cells[1]["source"].replace(old, new)

    return edit


@pytest.mark.parametrize(
    "edit, says",
    [
        (_swap("    ### END SOLUTION", ""), "cell 2: '### BEGIN SOLUTION' has no '### END SOLUTION'"),
        (_swap("    ### BEGIN SOLUTION\n", ""), "cell 2: '### END SOLUTION' does not match"),
        (_swap("return 1", "### BEGIN SOLUTION"), "cell 2: '### BEGIN SOLUTION' does not match"),
        (lambda cells: cells[1].update(source="def f(): pass"), "cell 2: it is tagged q1 but marks no solution"),
        (lambda cells: cells[1]["metadata"].update(tags=[]), "cell 2: a solution needs exactly one question's tag"),
        (lambda cells: cells.pop(2), "q1 needs exactly one of the cells that check it"),
        (lambda cells: cells.append(_cell("code", 'check("q1")')), "cells [3, 10]"),
        (lambda cells: cells.pop(1), "q1 needs exactly one of the answer cells"),
        (lambda cells: cells[1]["metadata"].update(tags=["q9"]), "cell 2: q9 is not a question of 00_start_here"),
    ],
)
def test_generation_names_what_does_not_fit_and_writes_nothing(tmp_path, edit, says):
    path = solution_file(tmp_path / "s", edit)
    line = raised(new_exercises.generate, tmp_path / "s", tmp_path / "e")
    assert says in line and path.name in line
    assert not (tmp_path / "e").exists()


# The terminal: files of every form, and a notebook that lost its cells.


@pytest.mark.parametrize(
    "content, says",
    [
        (None, "there is no file"),
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe", "cannot be read as text"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "not a notebook of format 3 or 4"),
        (b'{"cells": [{"cell_type": "code", "source": [1]}]}', "not a notebook of format 3 or 4"),
        (b'{"worksheets": []}', "not a notebook of format 3 or 4"),
        (b'{"cells": []}', "is not an exercise of this course"),
    ],
)
def test_unusable_file_gets_one_line(tmp_path, content, says):
    path = tmp_path / "mine.ipynb"
    if content is not None:
        path.write_bytes(content)
    assert says in raised(run_notebook.check_notebook, path)


SET_UP = 'from course_lib.exercises import Exercise\ncheck = Exercise("00_start_here")'
SIZES = "def shard_sizes(batch, n):\n    return [batch // n + (i < batch % n) for i in range(n)]"
STEPS = "def steps_per_epoch(n, b, drop_remainder):\n    return n // b if drop_remainder else -(-n // b)"


def test_terminal_grades_what_is_left_and_notes_what_is_gone(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    stale = Verdict("q4", "t", True, 1, 1).as_dict()
    cells = [
        _cell("code", SET_UP),
        _cell("code", "import nothing_of_this_name"),
        _cell("code", SIZES, "q1"),
        _cell("code", 'check("q2")'),  # above its answer
        _cell("code", STEPS.replace("return", "return 0 *"), "q2"),
        _cell("code", STEPS),
        _cell("code", "def put():\n    pass", "q3"),
        _cell("code", "", outputs=[{"output_type": "display_data", "metadata": {}, "data": {VERDICT_MIME: stale}}]),
    ]
    path = tmp_path / "00_start_here (1).ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    before = path.read_bytes()
    q1, q2, q3, q4 = run_notebook.check_notebook(path)
    assert path.read_bytes() == before and os.listdir(tmp_path).count(path.name) == 1
    assert q1.right and q1.notes == ("q1's check cell is gone; it was checked all the same",)
    assert q2.right and "several cells (5, 6)" in q2.notes[0]
    assert not q3.right and "asks for place" in q3.problem and "was it renamed?" in q3.notes[0]
    assert not q4.right and "answer cell is gone" in q4.notes[0]


def test_terminal_outlives_a_kernel_that_dies(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    code = [SET_UP, SIZES, 'check("q1")', "shard_sizes = ...", 'check("q1")', "import os; os._exit(1)"]
    cells = [_cell("code", source) for source in code]
    path = tmp_path / "00_start_here.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    q1, *others = run_notebook.check_notebook(path)
    assert q1.right  # and stays right when a later check of it fails
    assert all("the kernel died in cell 6" in verdict.problem for verdict in others)


def test_a_failed_check_shows_its_line_alone(tmp_path, monkeypatch):
    """In a real kernel: the verdict in three forms, then one line without a traceback."""
    nbclient, nbformat = need("nbclient"), need("nbformat")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    code = [SET_UP, "def shard_sizes(batch, n):\n    raise NotImplementedError", 'check("q1")']
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in code])
    client = nbclient.NotebookClient(notebook, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown, error = notebook.cells[-1].outputs
    assert set(shown.data) == {VERDICT_MIME, "text/plain", "text/html"}
    assert error.traceback == ["CheckFailed: q1 is still blank"]
