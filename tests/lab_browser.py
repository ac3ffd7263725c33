"""JupyterLab in headless Chromium, used as a person uses it: for test_lab.py, benchmark_lab.py, readme_picture.py.

The server works on a copy of the course, with nobody's settings. What the cells hold is read from JupyterLab's own
model of the open notebook, because the page of a long one holds only the cells in sight.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Locator, Page, Route, sync_playwright

from course_lib.staff.new_exercises import generate
from course_lib.staff.store_outputs import RAISES

ROOT = Path(__file__).parents[1]
PATIENCE = 480_000  # milliseconds for a whole notebook; a minute for anything else
URL = re.compile(r"http://127\.0\.0\.1:\d+/\S*token=\w+")
SIZE = {"width": 1400, "height": 900}
COMMAND = (sys.executable, "-m", "course_lib.cli", "lab", "--no-browser")
NOTEBOOK = ".jp-NotebookPanel:not(.lm-mod-hidden)"  # the open one

# In the page: whether the open notebook's kernel is idle, what shows its cells, and its code cells.
IDLE = "() => jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'"
CONTENT = "jupyterapp.shell.currentWidget.content"
# A running cell's prompt, such as "12 s of ~20".
OF_HOW_MANY = """cell.node.querySelector(".jp-InputPrompt[data-seconds*='of ~']")"""
CELLS = f"""{CONTENT}.widgets.filter(cell => cell.model.type === "code").map(cell => ({{
  tags: cell.model.getMetadata("tags") ?? [],
  source: cell.model.sharedModel.source,
  count: cell.model.executionCount,
  outputs: cell.model.outputs.toJSON(),
}}))"""

# The first of these cells that raised and should not have: JupyterLab runs none after it.
RED = f"""cells.find(cell =>
  !cell.tags.includes("{RAISES}") && cell.outputs.some(output => output.output_type === "error"))"""


def copy_of_the_course(folder: Path) -> Path:
    """What a learner starts with: lessons, package and blank exercises, in a git clone of their own."""
    for name in ("course_lib", "notebooks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "logs", ".*"))
    generate(ROOT / "solutions", folder / "exercises")
    shutil.copy(ROOT / ".gitignore", folder)
    nobody = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    for words in (("init", "--quiet"), ("add", "--all"), (*nobody, "commit", "--quiet", "--message", "the course")):
        subprocess.run(("git", *words), cwd=folder, check=True)
    return folder


def changed_in_git(course: Path) -> list[str]:
    """What `git status` lists."""
    command = ("git", "status", "--porcelain")
    return subprocess.run(command, cwd=course, check=True, capture_output=True, text=True).stdout.splitlines()


@contextlib.contextmanager
def lab(course: Path, settings: Path, command: tuple[str, ...] = COMMAND) -> Iterator[str]:
    """`course lab` in the course's folder, without this machine's own settings; gives the address that it prints."""
    own = {f"JUPYTER_{name}_DIR": str(settings / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    (settings / "config").mkdir(parents=True)
    (settings / "config/jupyter_server_config.json").write_text('{"LabApp": {"expose_app_in_browser": true}}')
    environment = {**os.environ, **own, "PYTHONPATH": str(course)}
    server = subprocess.Popen(
        command, cwd=course, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said = []
    try:
        for line in server.stdout:
            said.append(line)
            if found := URL.search(line):
                break
        else:
            raise RuntimeError("JupyterLab ended:\n" + "".join(said))
        # A full pipe would stop the server.
        threading.Thread(target=lambda: said.extend(server.stdout), daemon=True).start()
        yield found[0]
    finally:
        server.terminate()
        server.wait(60)


@contextlib.contextmanager
def browser_page() -> Iterator[Page]:
    """A page of headless Chromium that reaches this machine alone: what it asks of another is an empty picture."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        page.set_default_timeout(60_000)
        page.route(re.compile("^https://"), _empty_picture)
        yield page
        browser.close()


def _empty_picture(route: Route) -> None:
    route.fulfill(
        content_type="image/svg+xml", body='<svg xmlns="http://www.w3.org/2000/svg" width="117" height="20"/>'
    )


def menu(page: Page, name: str, item: str) -> None:
    """Click an item of the menu bar."""
    page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{name}$")).click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{item}")).click()


def opened(page: Page, path: str) -> None:
    """Wait until a notebook is the open one, with its cells and an idle kernel."""
    page.wait_for_function("path => window.jupyterapp?.shell.currentWidget?.context?.path === path", arg=path)
    page.wait_for_function(IDLE)
    page.locator(f"{NOTEBOOK} .jp-Cell").first.wait_for()


def run_all(page: Page) -> list[dict]:
    """Clear all outputs, run all cells by the menu, and give the cells once all have run; one that raises fails.

    One that took ten seconds or more where it was stored says so while it runs.
    """
    menu(page, "Edit", "Clear Outputs of All Cells")
    menu(page, "Run", "Run All Cells")
    if page.evaluate(f"() => {CONTENT}.widgets.some(cell => cell.model.getMetadata('seconds') >= 10)"):
        page.wait_for_function(f"() => {CONTENT}.widgets.some(cell => {OF_HOW_MANY})", timeout=PATIENCE)
    ended = f"cells => {RED} || cells.every(cell => cell.count !== null)"
    page.wait_for_function(f"() => ({ended})({CELLS})", timeout=PATIENCE)
    page.wait_for_function(IDLE)
    if red := page.evaluate(f"() => (cells => {RED})({CELLS})"):
        raise AssertionError("\n".join([red["source"], *map(json.dumps, red["outputs"])]))
    return page.evaluate(CELLS)


def place_of(text: str) -> str:
    """JavaScript for the number of the open notebook's first code cell with this text."""
    has = f"cell.model.type === 'code' && cell.model.sharedModel.source.includes({json.dumps(text)})"
    return f"{CONTENT}.widgets.findIndex(cell => {has})"


def cell_in_sight(page: Page, place: str) -> Locator:
    """A cell of the open notebook, scrolled to the middle.

    place  of the cell among all, in JavaScript; waited for: what a reload brings back has its cells one after another
    """
    page.wait_for_function(f"() => {place} >= 0")
    scroll = f"const number = {place}; await {CONTENT}.scrollToItem(number, 'center'); return number;"
    number = page.evaluate(f"async () => {{ {scroll} }}")
    return page.locator(f'{NOTEBOOK} .jp-Cell[data-windowed-list-index="{number}"]')


def in_sight(page: Page, text: str) -> Locator:
    """The first code cell of the open notebook with this text, scrolled to."""
    return cell_in_sight(page, place_of(text))


def run_cell(page: Page, text: str, source: str | None = None) -> Locator:
    """Click into the code cell with this text, write another source over it if given, and run it; gives the cell."""
    cell = in_sight(page, text)
    listen = """window.counted = false;
      model.stateChanged.connect((_, change) => {
        counted ||= change.name === "executionCount" && change.newValue !== null;
      });"""
    page.evaluate(f"() => {{ const model = {CONTENT}.widgets[{place_of(text)}].model; {listen} }}")
    cell.locator(".cm-content").click()
    if source is not None:
        page.keyboard.press("Control+A")
        page.keyboard.insert_text(source)
    page.keyboard.press("Shift+Enter")
    page.wait_for_function("() => counted")
    return cell


def follow(page: Page, name: str) -> None:
    """Click the last link with this name in the open notebook's last cell."""
    cell_in_sight(page, f"{CONTENT}.widgets.length - 1").get_by_role("link", name=name).last.click()


def save(page: Page) -> None:
    """Save the open notebook by the keyboard, and wait until it is on disk."""
    context = "jupyterapp.shell.currentWidget.context"
    page.evaluate(f"""() => {{
      window.saved = false;
      {context}.saveState.connect((_, state) => {{ saved ||= state === "completed"; }});
    }}""")
    page.keyboard.press("Control+S")
    page.wait_for_function("() => saved")
