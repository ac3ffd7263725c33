"""The library's reference: a page for each module that a lesson imports, which Sphinx's autodoc fills. Needs nothing.

A docstring's prose becomes paragraphs; its tables of arguments stay as they were typed.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path
from textwrap import indent

from course_lib.exercises.notebook_cells import read_notebook

PACKAGE = "course_lib"
_CODE = re.compile(r"``?([^`]+)``?")
_TYPED = re.compile(r"^\s|\S {2,}\S", re.MULTILINE)  # indented, or in columns: to be shown as typed
_PAGE = """\
{name}
{line}

Imported by {noun} {links}.

.. automodule:: {name}
{options}
"""
_INDEX = """\
The library
===========

What the lessons import, read from the library's own docstrings.

.. list-table::
   :header-rows: 1

   * - Module
     - What it is
{rows}

.. toctree::
   :hidden:

   {names}
"""


def stage(checkout: Path, folder: Path) -> None:
    """Write the sources of the reference's pages, and of their index."""
    folder.mkdir(parents=True)
    rows, taught = [], lessons_of_modules(checkout)
    for name in sorted(taught):
        links = ", ".join(f":doc:`{lesson.partition('_')[0]} </notebooks/{lesson}>`" for lesson in sorted(taught[name]))
        noun = "lesson" if len(taught[name]) == 1 else "lessons"
        source = _file(checkout, name).read_text()
        options = "   :imported-members:" if "__all__" in source else ""  # a package shows what it names there
        page = _PAGE.format(name=name, line="=" * len(name), options=options, noun=noun, links=links)
        (folder / f"{name}.rst").write_text(page)
        summary = ast.get_docstring(ast.parse(source)).split("\n\n")[0]
        rows += [f"   * - :doc:`{name}`", f"     - {' '.join(_prose(summary).split())}"]
    (folder / "index.rst").write_text(_INDEX.format(rows="\n".join(rows), names="\n   ".join(sorted(taught))))


def lessons_of_modules(checkout: Path) -> dict[str, set[str]]:
    """The lessons' file names without their ending, by the module of the library that they import."""
    taught = defaultdict(set)
    for path in sorted((checkout / "notebooks").glob("*.ipynb")):
        for cell in read_notebook(path)["cells"]:
            if cell["cell_type"] == "code":
                for name in _imported(checkout, cell["source"]):
                    taught[name].add(path.stem)
    return dict(taught)


def _imported(checkout: Path, source: str) -> set[str]:
    """Modules of the library that a cell imports; a name taken from a module stands for the module."""
    python = re.sub(r"^(\s*)[%!](?!=).*", r"\1pass", source, flags=re.MULTILINE)
    names = set()
    for node in ast.walk(ast.parse(python)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names.add(full if _file(checkout, full) else node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith(f"{PACKAGE}.")}
    return names - {PACKAGE}


def _file(checkout: Path, name: str) -> Path | None:
    stem = checkout.joinpath(*name.split("."))
    return next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()), None)


def as_rst(docstring: str) -> str:
    """A docstring as reStructuredText."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", docstring.strip("\n")):
        typed = _TYPED.search(paragraph)
        parts.append(".. code-block:: text\n\n" + indent(paragraph, "   ") if typed else _prose(paragraph))
    return "\n\n".join(parts) + "\n"


def _prose(paragraph: str) -> str:
    """Text with what reStructuredText would read as its own escaped, and names between backticks as code."""
    pieces = _CODE.split(paragraph)
    plain = [re.sub(r"([\\*`_|])", r"\\\1", piece) for piece in pieces[::2]]
    code = [f"\\ ``{' '.join(piece.split())}``\\ " for piece in pieces[1::2]]
    return "".join(text for pair in zip(plain, [*code, ""]) for text in pair)
