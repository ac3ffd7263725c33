"""The catalogue of lessons against the files and tables that repeat it."""

import ast
import re
from pathlib import Path

import nbformat
import pytest

from course_lib.lessons import LESSONS, NOTEBOOKS, in_colab

ROOT = Path(__file__).parents[1]
each_notebook = pytest.mark.parametrize("lesson", NOTEBOOKS.values(), ids=NOTEBOOKS)
each_lesson = pytest.mark.parametrize("lesson", LESSONS.values(), ids=LESSONS)


def cells(name: str, folder: str = "notebooks") -> list[str]:
    return [cell.source for cell in nbformat.read(ROOT / folder / f"{name}.ipynb", as_version=4).cells]


def rows(page: str) -> list[list[str]]:
    """The cells of every row of a page's tables."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]


@pytest.mark.parametrize("folder, names", [("notebooks", NOTEBOOKS), ("solutions", LESSONS), ("exercises", LESSONS)])
def test_each_lesson_has_its_files_and_no_file_is_left_over(folder, names):
    assert {path.stem for path in (ROOT / folder).glob("[0-9][0-9]*.ipynb")} == set(names)


@each_notebook
def test_a_notebook_begins_with_its_title_and_question(lesson):
    head = cells(lesson.name)[0]
    assert head.startswith(f"# {lesson.number} · {lesson.title}\n")
    assert f"\n**{lesson.question}**\n" in head


def test_the_readme_counts_the_lessons_as_they_are():
    """In its first lines, and in what it says of its picture; tests/readme_picture.py takes that again."""
    counted = re.findall(r"(\w+) (?:lessons|graded exercises)\b", (ROOT / "README.md").read_text().partition("## ")[0])
    counted += re.findall(r"with the (\w+) lessons", (ROOT / "README.md").read_text())
    assert len(LESSONS) == 13 and counted == ["thirteen"] * 3


@each_notebook
def test_a_lesson_is_one_sitting_long(lesson):
    assert len(cells(lesson.name)) <= 60


@each_notebook
def test_a_notebook_names_its_time_and_the_hardware_that_it_can_use(lesson):
    (runs,) = re.findall(r"(?m)^- \*Runs:\* (.*)", cells(lesson.name)[0])
    time = runs.partition(" on two CPU cores")[0]
    seconds = re.search(r"(\d+) seconds", time)
    halves = 1.5 if "a half" in time else 2 if "two" in time else 1
    assert lesson.minutes == pytest.approx(int(seconds[1]) / 60 if seconds else halves, abs=0.05)
    assert lesson.hardware.lower() in runs.lower()


@pytest.mark.parametrize(
    "folder, lesson",
    [("notebooks", part) for part in NOTEBOOKS.values()]
    + [(folder, lesson) for folder in ("solutions", "exercises") for lesson in LESSONS.values()],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_notebook_says_which_runtime_to_choose_in_colab(folder, lesson):
    """And what one GPU or the TPU's one chip changes, by what its set-up cell asks of devices.simulate."""
    head, *others = cells(lesson.name, folder)
    set_up = next(source for source in others if source.startswith("# @title Set-up"))
    (call,) = [
        node
        for node in ast.walk(ast.parse(set_up))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "devices.simulate"
    ]
    values = [ast.literal_eval(value) for value in call.args]
    named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    (said,) = re.findall(r"(?m)^(?:- )?\*+In Colab:\*+ (.*)", head)
    assert said.startswith(in_colab(*values, **named))
    lessons_own = folder == "notebooks" and lesson.runtime == "TPU"
    assert ("#From-here-on-the-TPU" in said) == lessons_own
    if folder == "notebooks":
        assert values[0] == lesson.devices


def test_readme_lists_every_lesson_with_its_question():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = [row[:2] for row in rows(text) if "](notebooks/" in row[0]]
    assert listed == [
        [f"[{lesson.number} {lesson.title}](notebooks/{lesson.name}.ipynb)", lesson.question]
        for lesson in NOTEBOOKS.values()
    ]


def test_lesson_00_lists_every_lesson_with_its_question():
    (table,) = [cell for cell in cells("00_start_here") if "](02_data_parallelism.ipynb) |" in cell]
    listed = [[re.sub(r"\[(.*)\]\(.*\)", r"\1", name), question] for name, question in rows(table)[2:]]
    assert listed == [[f"{lesson.number} {lesson.title}", lesson.question] for lesson in NOTEBOOKS.values()]


@each_lesson
def test_an_exercise_has_its_questions_and_probes(lesson):
    for room in ("judges", "probes"):
        assert (ROOT / "course_lib" / "exercises" / room / f"{lesson.exercise}.py").is_file()
