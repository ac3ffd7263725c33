"""How long a learner waits: from `make lab` to an open lesson, and from a move of a control to its new picture.

`python tests/benchmark_lab.py` takes two minutes and needs chromium, on a machine that is set up and idle. Times are
wall clock in the browser: a move counts from the key or click to the first frame with the picture decoded.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import nbformat
from lab_browser import ROOT, browser_page, copy_of_the_course, in_sight, lab, opened, run_cell

from course_lib import views

# When the event that moves a control comes, and when the view's next picture is on the page.
WATCH = """shown => {
  window.reactions = [];
  const controls = shown.closest(".course-panel");
  for (const kind of ["change", "keydown"])
    controls.addEventListener(kind, event => { window.moved = event.timeStamp; }, true);
  new MutationObserver(async () => {
    await shown.querySelector("img").decode();
    requestAnimationFrame(now => reactions.push(now - moved));
  }).observe(shown, { childList: true, subtree: true });
}"""

AT_START = "it => it.tagName === 'SELECT' ? it.selectedIndex === 0 : it.ariaValueNow === it.ariaValueMin"


def until_open(folder: Path, times: int) -> list[float]:
    """Seconds from `make lab` to lesson 00 with an idle kernel."""
    os.environ["BROWSER"] = "true"  # the program that JupyterLab would call; the page below is opened in its place
    seconds = []
    for number in range(times):
        with browser_page() as page:
            start = time.perf_counter()
            with lab(ROOT, folder / f"settings {number}", ("make", "lab")) as address:
                page.goto(address)
                opened(page, "notebooks/00_start_here.ipynb")
                seconds.append(time.perf_counter() - start)
    return seconds


def reactions(folder: Path, moves: int) -> dict[str, list[float]]:
    """Milliseconds of every move of every control, by view."""
    course = copy_of_the_course(folder / "course")
    cells = [nbformat.v4.new_code_cell(f"from course_lib import views\nviews.{name}()") for name in views.__all__]
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    nbformat.write(
        nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), course / "notebooks/views.ipynb"
    )
    taken = {}
    with lab(course, folder / "settings") as address, browser_page() as page:
        page.goto(address.replace("00_start_here", "views"))
        opened(page, "notebooks/views.ipynb")
        for name in views.__all__:
            run_cell(page, f"views.{name}()")
            cell = in_sight(page, f"views.{name}()")
            cell.locator("figure img").wait_for()
            cell.locator(".widget-html-content").evaluate(WATCH)
            for control in (*cell.get_by_role("combobox").all(), *cell.get_by_role("slider").all()):
                at_start = control.evaluate(AT_START)
                for number in range(moves):
                    before = page.evaluate("() => reactions.length")
                    control.press("End" if at_start == (number % 2 == 0) else "Home")
                    page.wait_for_function("before => reactions.length > before", arg=before)
            taken[name] = page.evaluate("() => reactions")
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=5, help="of make lab (5)")
    parser.add_argument("--moves", type=int, default=6, help="of each control (6)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = until_open(Path(folder), arguments.starts)
        middle = statistics.median(seconds)
        print(f"make lab to an open lesson: median {middle:.1f} s, {min(seconds):.1f} to {max(seconds):.1f} s")
        taken = reactions(Path(folder), arguments.moves)
    for name, milliseconds in {**taken, "all": sum(taken.values(), [])}.items():
        middle, worst = statistics.median(milliseconds), max(milliseconds)
        print(f"{name:<12} median {middle:4.0f} ms, at most {worst:4.0f} ms of {len(milliseconds)} moves")


if __name__ == "__main__":
    main()
