"""The course's notebooks and Markdown pages as sources of the site. Needs nothing.

The site's folders are those of the checkout, so links between notebooks lead
where they led. What a page can't show as it stands is changed on the way: badges,
which are pictures on another machine; links into the library's code, which
become links to its reference; and what a picture lacks for those who hear the page.
"""

import html
import json
import re
import shutil
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.exercises.notebook_cells import read_notebook
from course_lib.lessons import NOTEBOOKS, Lesson, Part

_BADGE = re.compile(r"\[!\[([^\]]*)\]\(https://colab\.[^)]*\.svg\)\]\(([^)]*)\)")
_MODULE = re.compile(r"\]\((?:\.\./)?course_lib/([\w/]+?)(?:/__init__)?\.py\)")
_LESSONS = re.compile(r"(?<=## Lessons\n\n)(\|.*\n)+")
_NOTEBOOK = re.compile(r'(href="[^":]+)\.ipynb(?=["#])')  # in an output's HTML, which no page's builder reads

# Forms of an output that no page can show: a verdict for programs, and a widget, which needs a kernel.
_FOR_PROGRAMS = ("application/vnd.course.", "application/vnd.jupyter.widget-")

_CONTENTS = """
```{toctree}
:hidden:
:glob:
:caption: %s

%s
```
"""
HELP = ("TROUBLESHOOTING", "TEACHING", "CONTRIBUTING")
CONTENTS = (
    ("Lessons", "notebooks/*"),
    ("Exercises", "exercises/*"),
    ("Library", "reference/index"),
    ("Help", "\n".join(HELP)),
)


def stage(checkout: Path, source: Path) -> None:
    """Write index.md, the help, notebooks/ and exercises/ of the site's sources. Raises as read_notebook does."""
    for folder in ("notebooks", "exercises"):
        (source / folder).mkdir(parents=True)
        for path in sorted((checkout / folder).glob("*.ipynb")):
            page = notebook_page(read_notebook(path), path)
            (source / folder / path.name).write_text(json.dumps(page))
    shutil.copytree(checkout / "notebooks" / "images", source / "notebooks" / "images")
    shutil.copy(checkout / "LICENSE", source)
    for name in HELP:
        (source / f"{name}.md").write_text(_rewritten((checkout / f"{name}.md").read_text(), ""))
    contents = "".join(_CONTENTS % pair for pair in CONTENTS)
    (source / "index.md").write_text(_front(_rewritten((checkout / "README.md").read_text(), "")) + contents)


def notebook_page(notebook: dict, path: Path) -> dict:
    """The notebook with its Markdown made fit for a page.

    Raises  CourseError for a picture that is none of `show.Figure`s, which have alt text
    """
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] == "markdown":
            cell["source"] = _rewritten(cell["source"], "../")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "text/html" in data:
                data["text/html"] = _NOTEBOOK.sub(r"\1.html", "".join(data["text/html"]))
            for kind in [kind for kind in data if kind.startswith(_FOR_PROGRAMS)]:
                del data[kind]
            if any(kind.startswith("image/") for kind in data):
                raise CourseError(f"{path}, cell {number} shows a picture without alt text; make it a show.Figure")
    return notebook


def _front(readme: str) -> str:
    """README as a first page: a button below its first words, and the lessons as cards in place of their table."""
    cards = "\n".join(map(_card, NOTEBOOKS.values()))
    begin = f'<p><a class="begin" href="notebooks/{next(iter(NOTEBOOKS))}.html">Begin with lesson 00</a></p>\n\n'
    return _LESSONS.sub(f'<div class="cards">\n{cards}\n</div>\n', readme.replace("## ", f"{begin}## ", 1))


def _card(part: Part) -> str:
    name, words = part.name, f"<p>{html.escape(part.question)}</p>"
    exercise = f'<p><a href="exercises/{name}.html">Exercise {part.number}</a></p>' if isinstance(part, Lesson) else ""
    return f'<div><a href="notebooks/{name}.html">{part.number} {html.escape(part.title)}</a>{words}{exercise}</div>'


def anchor(title: str) -> str:
    """A heading's anchor as Jupyter makes it, which is what the notebooks' links name."""
    return title.replace(" ", "-")


def _rewritten(markdown: str, up: str) -> str:
    """up  leads from the page's folder to the site's top"""
    markdown = _BADGE.sub(r"[\1](\2)", markdown)
    return _MODULE.sub(lambda match: f"]({up}reference/course_lib.{match[1].replace('/', '.')}.rst)", markdown)
