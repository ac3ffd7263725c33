"""A learner's first hours in JupyterLab, in headless Chromium: lessons 00 to 02, a view, and exercises' first question.

One walk in one browser, on a copy of the course; axe looks at each page.
"""

import re
from pathlib import Path

import pytest
from axe import axe_findings
from lab_browser import (
    CELLS,
    IDLE,
    PATIENCE,
    browser_page,
    changed_in_git,
    copy_of_the_course,
    follow,
    in_sight,
    lab,
    menu,
    opened,
    run_all,
    run_cell,
    save,
)
from playwright.sync_api import expect

from course_lib import progress
from course_lib.exercises import judges
from course_lib.exercises.notebook_cells import question_tags, read_notebook
from course_lib.lessons import LESSONS, NOTEBOOKS
from course_lib.staff import store_outputs

ROOT = Path(__file__).parents[1]
# For q1 of each exercise: what of the solution is written wrongly, and how, and the mistake that it is.
WRONG = {
    "00_start_here": ("size + (replica < left_over)", "size", "remainder dropped"),
    "01_one_device": ("step().numpy()", "step()", "not waited for"),
    "02_data_parallelism": ("chunks[right][chunk] + array", "array", "stored, not added"),
}


@pytest.mark.slow(seconds=230)
def test_a_learners_first_hours(tmp_path):
    expect.set_options(timeout=60_000)  # milliseconds: in CI another test has the other core
    course = copy_of_the_course(tmp_path / "course")
    with lab(course, tmp_path / "jupyter") as address, browser_page() as page:
        page.goto(address)
        it_opens_on_lesson_00_beside_the_lessons_in_their_order(page)
        for lesson in WRONG:
            a_lesson_runs_without_a_red_cell(page, lesson)
            all_can_use(page)
            its_checks_alone_change_no_file(page, course, lesson)
            its_exercise_says_what_is_wrong_and_counts_what_is_right(page, course, lesson)
        a_view_follows_its_controls(page)
        what_was_only_run_is_no_work_to_save(page, course)
        lesson_00_shows_the_points_and_a_reload_keeps_the_work(page)


def solution(exercise: str) -> str:
    """The right answer to q1."""
    cells = read_notebook(ROOT / "solutions" / f"{exercise}.ipynb")["cells"]
    (source,) = [cell["source"] for cell in cells if "q1" in question_tags(cell)]
    return re.sub(r"(?m)^ *### (BEGIN|END) SOLUTION\n?", "", source)


def it_opens_on_lesson_00_beside_the_lessons_in_their_order(page):
    opened(page, "notebooks/00_start_here.ipynb")
    listed = page.locator(".jp-DirListing-itemText").all_inner_texts()
    assert [name for name in listed if name.endswith(".ipynb")] == [f"{lesson}.ipynb" for lesson in NOTEBOOKS]
    assert page.locator(".lm-TabBar-tabLabel:visible", has_text=".ipynb").count() == 1
    assert page.locator(".jp-Dialog, .Toastify__toast").count() == 0


def a_lesson_runs_without_a_red_cell(page, lesson):
    """Each is reached by a link from the one before. The cells of a lesson that say so raise, and no other."""
    opened(page, f"notebooks/{lesson}.ipynb")
    page.wait_for_function(f"() => {CELLS}.every(cell => cell.count === null)")  # stored outputs, nobody's run
    cells = run_all(page)
    red = [cell["source"] for cell in cells if any(output["output_type"] == "error" for output in cell["outputs"])]
    assert red == [cell["source"] for cell in cells if store_outputs.RAISES in cell["tags"]]


def all_can_use(page):
    """Axe finds nothing, in the lesson or exercise and in what JupyterLab draws around it."""
    assert axe_findings(page) == []


def its_checks_alone_change_no_file(page, course, lesson):
    """Every check of the blank exercise, run and not saved: git knows of the exercises that were saved before alone."""
    before = changed_in_git(course)
    assert before == [f" M exercises/{name}.ipynb" for name in list(WRONG)[: list(WRONG).index(lesson)]]
    follow(page, f"exercise {lesson[:2]}")
    opened(page, f"exercises/{lesson}.ipynb")
    run_cell(page, "import course_lib")
    for question in judges.questions(lesson):
        run_cell(page, f'check("{question.name}")')
    page.wait_for_function(IDLE, timeout=PATIENCE)
    all_can_use(page)
    assert not page.evaluate("() => jupyterapp.shell.currentWidget.context.model.dirty")
    assert changed_in_git(course) == before


def its_exercise_says_what_is_wrong_and_counts_what_is_right(page, course, lesson):
    question, right = judges.questions(lesson)[0], solution(lesson)
    good, bad, name = WRONG[lesson]
    (mistake,) = [mistake for mistake in question.mistakes if mistake.name == name]
    run_cell(page, f"def {question.asks_for[0]}(", right.replace(good, bad))
    check = run_cell(page, 'check("q1")')
    expect(check).to_contain_text("q1 is not right yet")
    expect(check).to_contain_text(mistake.what)
    run_cell(page, f"def {question.asks_for[0]}(", right)
    check = run_cell(page, 'check("q1")')
    expect(check).to_contain_text(f"q1 is right: {question.points} of {question.points} point")
    save(page)
    assert progress.read(course / "exercises").exercises[[*LESSONS].index(lesson)].points == question.points
    menu(page, "Kernel", "Shut Down Kernel")

    follow(page, "lesson")


def a_view_follows_its_controls(page):
    """Lesson 02's all-reduce stepper, by mouse, key and Play button: picture, caption and table change together."""
    page.get_by_role("tab", name="02_data_parallelism.ipynb").first.click()
    opened(page, "notebooks/02_data_parallelism.ipynb")
    cell = in_sight(page, "views.all_reduce(")
    first = seen(cell)
    cell.get_by_label("algorithm").select_option("tree")
    expect(cell.locator("figcaption")).not_to_have_text(first["caption"])
    second = seen(cell)
    cell.get_by_role("slider").last.press("ArrowLeft")
    expect(cell.locator("figcaption")).not_to_have_text(second["caption"])
    third = seen(cell)
    cell.get_by_role("button", name="Play rounds so far").press("Enter")
    expect(cell.locator("figcaption")).to_contain_text("after 4 of 4 rounds")  # the tree's last
    assert all(len({first[part], second[part], third[part]}) == 3 for part in first)


def what_was_only_run_is_no_work_to_save(page, course):
    """The files of the lessons are as they came, and one closes without a question; one written in asks."""
    saved = [f" M exercises/{lesson}.ipynb" for lesson in WRONG]
    assert changed_in_git(course) == saved
    page.keyboard.press("Escape")
    menu(page, "File", "Close Tab")
    page.wait_for_function(
        "() => jupyterapp.shell.currentWidget?.context?.path !== 'notebooks/02_data_parallelism.ipynb'"
    )
    assert page.locator(".jp-Dialog").count() == 0

    page.locator(".jp-DirListing-itemText", has_text="01_one_device.ipynb").dblclick()
    opened(page, "notebooks/01_one_device.ipynb")
    run_cell(page, "# @title Set-up", "1 + 1")
    menu(page, "File", "Close Tab")
    page.locator(".jp-Dialog").get_by_role("button", name="Discard").click()
    assert changed_in_git(course) == saved


def seen(cell) -> dict[str, str]:
    """A view's picture, caption and table."""
    picture, caption = cell.locator("img"), cell.locator("figcaption").text_content()
    assert picture.get_attribute("alt") == caption
    return {"picture": picture.get_attribute("src"), "caption": caption, "table": cell.locator("table").text_content()}


def lesson_00_shows_the_points_and_a_reload_keeps_the_work(page):
    page.locator(".jp-DirListing-itemText", has_text="00_start_here").dblclick()
    opened(page, "notebooks/00_start_here.ipynb")
    points = sum(judges.questions(lesson)[0].points for lesson in WRONG)
    table = run_cell(page, "progress.read(")
    expect(table).to_contain_text(f"Your progress: {points} of ")
    expect(table).to_contain_text("Next: q2 in exercises/00_start_here.ipynb")
    save(page)

    page.reload()
    opened(page, "notebooks/00_start_here.ipynb")
    expect(in_sight(page, "progress.read(")).to_contain_text(f"Your progress: {points} of ")
    page.get_by_role("tab", name="00_start_here.ipynb").last.click()
    opened(page, "exercises/00_start_here.ipynb")
    expect(in_sight(page, 'check("q1")')).to_contain_text("q1 is right")
    assert solution("00_start_here") in [cell["source"] for cell in page.evaluate(CELLS)]
