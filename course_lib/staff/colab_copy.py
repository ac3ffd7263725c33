"""Self-contained notebooks for Colab, with the course's package inside: one, or all in a zip. Needs pip, and its index.

For people with no repository at hand. A cell before the set-up cell holds the
package's wheel; it checks the wheel's SHA-256 and installs it with nothing else
fetched or replaced. Pictures become part of the notebook. Links into the repository
become addresses, or plain text where the set-up cell names no repository.
"""

import base64
import hashlib
import io
import mimetypes
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Container
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.exercises.notebook_cells import read_notebook
from course_lib.staff.fork_badges import named
from course_lib.staff.grade.results import write_whole
from course_lib.staff.new_exercises import as_bytes

CELL_ID = "course-package"

# Run where this package is not: the standard library and pip are all that it has.
CARRIER = """\
# @title The course's package travels in this notebook. Run this cell first.
import base64, hashlib, importlib.util, pathlib, subprocess, sys, tempfile

class PackageError(Exception):
    def _render_traceback_(self):  # one line instead of a traceback
        return ["PackageError: %s" % self]

if importlib.util.find_spec("course_lib") is None:
    NAME, SHA256 = {name!r}, {sha256!r}
    WHEEL = {wheel!r}
    try:
        content = base64.b64decode(WHEEL)
    except ValueError:
        content = b""
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise PackageError("the package in this cell is damaged (SHA-256 differs): take a fresh copy of the notebook")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, NAME)
        path.write_bytes(content)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-index", "--no-deps"]
        done = subprocess.run([*pip, path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise PackageError("pip could not install %s: %s" % (NAME, (done.stdout.strip().splitlines() or [""])[-1]))
    importlib.invalidate_caches()
    print("installed", NAME)
"""

# A picture or a link in Markdown: ![text](target), [text](target#heading). Addresses and headings here are left alone.
_PICTURE = re.compile(r"(?P<before>!\[[^\]]*\])\((?P<target>[^()\s#:]+)\)")
_LINK = re.compile(
    r"(?<!!)\[(?P<text>(?:!\[[^\]]*\]\([^)]*\)|[^][])*)\]\((?P<target>[^()\s#:]+)(?P<heading>#[^()\s]*)?\)"
)


def write(notebook_path: Path, out: Path, root: Path) -> Path:
    """Write a self-contained copy of a notebook of the checkout at root.

    out     the file to write; an earlier one is replaced
    Returns out
    Raises  CourseError for a file that is not a notebook of the course, carries the
            package already, or lies outside the checkout, where its links lead
            nowhere; and where pip cannot build the package
    """
    if not notebook_path.resolve().is_relative_to(root):
        raise CourseError(f"{notebook_path} is not in the course's folder {root}, where its links lead; move it there")
    if out.resolve() == notebook_path.resolve():
        raise CourseError(f"--out names the notebook itself, {notebook_path}; name another file")
    if out.is_dir():
        raise CourseError(f"--out names a folder, {out}; name a file, such as {out / 'copy.ipynb'}")
    copy = _copy(notebook_path, root)
    _store(out, copy(_carrier(*_wheel(root))))
    return out


def write_all(out: Path, root: Path) -> int:
    """Write a zip of all lessons and exercises, each a copy that carries the package; they link to each other.

    Returns  how many notebooks it holds
    Raises   CourseError as `write` does
    """
    if out.is_dir():
        raise CourseError(f"--out names a folder, {out}; name a file, such as {out / 'course_colab.zip'}")
    paths = [path for folder in ("notebooks", "exercises") for path in sorted((root / folder).glob("*.ipynb"))]
    content, copies = io.BytesIO(), {path: _copy(path, root, {path.resolve() for path in paths}) for path in paths}
    carrier = _carrier(*_wheel(root))
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for path, copy in copies.items():
            file.writestr(zipfile.ZipInfo(path.relative_to(root).as_posix()), copy(carrier), zipfile.ZIP_DEFLATED)
    _store(out, content.getvalue())
    return len(paths)


def _store(out: Path, content: bytes) -> None:
    try:
        write_whole(out, content)
    except CourseError as error:
        raise CourseError(f"{error}; name another file with --out") from None


def _copy(path: Path, root: Path, beside: Container[Path] = ()) -> Callable[[dict], bytes]:
    """What makes the copy's file out of the cell that carries the package.

    beside  notebooks to which links stay as they are
    """
    notebook, address = read_notebook(path), named(path)
    place = _set_up_place(notebook["cells"], path)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = _standing_alone(cell["source"], path.resolve().parent, root, address, beside)
    cells = notebook["cells"]
    return lambda carrier: as_bytes({**notebook, "cells": [*cells[:place], carrier, *cells[place:]]})


def _set_up_place(cells: list[dict], path: Path) -> int:
    if any(cell.get("id") == CELL_ID for cell in cells):
        raise CourseError(f"{path} carries the package already; start from the lesson or exercise itself")
    for place, cell in enumerate(cells):
        if cell["cell_type"] == "code" and re.search(r"^\s*import course_lib\b", cell["source"], re.MULTILINE):
            return place
    raise CourseError(f"{path} has no set-up cell with `import course_lib`, so it needs no package; take a fresh copy")


def _wheel(root: Path) -> tuple[str, bytes]:
    """The file name and the content of this package's wheel. The same checkout gives the same bytes each time."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps"]
        command = [*pip, "--wheel-dir", folder, root]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        if done.returncode:
            # What pip says after the output of a step that failed is the same for every cause.
            cause = (done.stdout.partition("[end of output]")[0].strip().splitlines() or ["no output"])[-1].strip()
            raise CourseError(
                f"pip could not build the course's wheel ({cause}); it fetches hatchling for that, so connect to the "
                "network, or name your mirror in PIP_INDEX_URL"
            )
        (path,) = Path(folder).glob("*.whl")
        return path.name, path.read_bytes()


def _carrier(name: str, content: bytes) -> dict:
    """The cell that installs a wheel; shown folded in Colab and in JupyterLab."""
    text, sha256 = base64.b64encode(content).decode(), hashlib.sha256(content).hexdigest()
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": CELL_ID,
        "metadata": {"cellView": "form", "jupyter": {"source_hidden": True}},
        "outputs": [],
        "source": CARRIER.format(name=name, sha256=sha256, wheel=text),
    }


def _standing_alone(prose: str, folder: Path, root: Path, address: str, beside: Container[Path]) -> str:
    """Markdown whose pictures are inside, and whose links into the repository lead to GitHub or are plain text."""
    repository, _, commit = address.partition("@")

    def file(target: str) -> Path | None:
        path = (folder / target).resolve()
        return path if path.exists() and path.is_relative_to(root) else None  # brackets in code, or another site

    def picture(match: re.Match) -> str:
        if not (path := file(match["target"])):
            return match[0]
        content = base64.b64encode(path.read_bytes()).decode()
        return f"{match['before']}(data:{mimetypes.guess_type(path.name)[0]};base64,{content})"

    def link(match: re.Match) -> str:
        path = file(match["target"])
        if not path or path in beside:
            return match[0]
        if not repository:
            return match["text"]
        place = f"{'tree' if path.is_dir() else 'blob'}/{commit}/{path.relative_to(root).as_posix()}"
        return f"[{match['text']}](https://github.com/{repository}/{place}{match['heading'] or ''})"

    return _PICTURE.sub(picture, _LINK.sub(link, prose))
