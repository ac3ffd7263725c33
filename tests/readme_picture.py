"""Take the README's picture of JupyterLab again: lesson 02's view of the ring, beside all lessons.

`python tests/readme_picture.py` needs chromium, and a minute on a machine that is set up.
"""

import tempfile
from pathlib import Path

from lab_browser import ROOT, browser_page, copy_of_the_course, lab, opened, run_cell

PICTURE = ROOT / "notebooks/images/jupyterlab.png"
LESSON = "02_data_parallelism"
SIZE = {"width": 1280, "height": 800}
VIEW = 'views.all_reduce(algorithm="ring", workers=4, round=4)'


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        course = copy_of_the_course(Path(folder) / "course")
        with lab(course, Path(folder) / "settings") as address, browser_page() as page:
            page.set_viewport_size(SIZE)
            page.goto(address.replace("00_start_here", LESSON))
            opened(page, f"notebooks/{LESSON}.ipynb")
            run_cell(page, "# @title Set-up", "from course_lib import views")
            cell = run_cell(page, "views.all_reduce(", VIEW)
            cell.locator("figure img").wait_for()
            cell.evaluate("cell => cell.scrollIntoView()")
            page.screenshot(path=PICTURE)
    print(f"{PICTURE.relative_to(ROOT)}, {PICTURE.stat().st_size:,} B; its alt text stands in README.md")


if __name__ == "__main__":
    main()
